"""Reading Inductor's generated wrapper, and torch's textual origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.compile_backend.stages.provenance.generated_code import clone_factory, read_wrapper
from memprof.profiler.live.stack_text import clean_module_path, innermost_module, parse_stack_trace
from memprof.profiler.model import SourceFrame

WRAPPER = """\
import torch
counter = 0
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions

    def recursively_apply_fns(self, fns):
        self.partitions = [f(c) for f, c in zip(fns, self.partitions)]

    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
        s0 = arg0_1.size(0)
        buf0 = make(4)
        with Guard(0):
            add(arg0_1, arg1_1, buf0)
            buf1 = buf0; del buf0  # reuse
            buf2 = split(buf1)
            buf3 = buf2[0]
            del arg0_1
        if s0 > 0:
            extern_kernels.mm(buf1, buf3, out=buf1)
        else:
            buf4 = reinterpret_tensor(buf1, (4,), (1,), 0)
        (buf5,) = self.partitions[0]([buf1])
        return (buf1, buf5, )

def partition_0(args):
    (buf1,) = args
    args.clear()
    return (buf1,)

runner = Runner(partitions=[partition_0])
call = runner.call

def get_args():
    return [1]
"""


def test_names_that_statements_assign_and_read() -> None:
    found = [(s.line, s.targets, s.reads) for s in read_wrapper(WRAPPER).statements]
    assert found == [
        (11, ("arg0_1", "arg1_1"), ("args",)),
        (12, (), ()),
        (13, ("s0",), ()),
        (14, ("buf0",), ()),
        (16, (), ("arg0_1", "arg1_1", "buf0")),
        (17, ("buf1",), ("buf0",)),
        (17, (), ()),
        (18, ("buf2",), ("buf1",)),
        (19, ("buf3",), ("buf2",)),
        (20, (), ()),
        (22, (), ("buf1", "buf3")),
        (24, ("buf4",), ("buf1",)),
        (25, ("buf5",), ("buf1",)),
        (26, (), ("buf1", "buf5")),
        (29, ("buf1",), ("args",)),
        (30, (), ()),
        (31, (), ("buf1",)),
    ]


def test_code_that_is_not_python_is_refused() -> None:
    with pytest.raises(SyntaxError):
        read_wrapper("int main() { return 0; }")


class _Hooks:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def at(self, line: int) -> None:
        self.seen.append(line)

    def bound(self, name: str, value: object) -> None:
        self.seen.append((name, value))

    def dropped(self, names: tuple[str, ...]) -> None:
        self.seen.append(("del", names))


def test_the_clone_computes_the_same_and_reports_every_statement() -> None:
    # GIVEN a generated module whose calls change a global of it
    source = """\
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
    def call(self, args):
        global count
        x, = args
        args.clear()
        count = count + 1
        y = self.partitions[0]([x])
        z = y; del y  # reuse
        for i in range(2):
            z = z + i
        return (z, count)
def partition_0(args):
    x, = args
    return x * 10
runner = Runner([partition_0])
call = runner.call
"""
    module: dict[str, object] = {"count": 0}
    exec(compile(source, "generated.py", "exec"), module)
    before = set(module)
    # WHEN its clone runs
    copy = read_wrapper(source).copy
    assert copy is not None
    clone = clone_factory(copy, module)
    hooks = _Hooks()
    result = clone(hooks).call([4])
    # THEN it has worked on the module's own globals and left nothing else there
    assert result == (41, 1)
    assert module["count"] == 1
    assert set(module) == before
    # AND every statement was reported, those of the partition included
    assert hooks.seen == [
        *(5, 6, ("x", 4), 7, 8, ("count", 1), 9),
        *(15, ("x", 4), 16, ("y", 40)),
        *(10, ("z", 40), 10, ("del", ("y",))),
        *(11, 12, ("z", 40), 12, ("z", 41), 13),
    ]


def test_a_traceback_of_the_clone_points_into_the_generated_file() -> None:
    source = "def call(args):\n    x = 1\n    raise ValueError(x)\n"
    module: dict[str, object] = {"__file__": "generated.py"}
    exec(compile(source, "generated.py", "exec"), module)
    copy = read_wrapper(source).copy
    assert copy is not None
    clone = clone_factory(copy, module)
    with pytest.raises(ValueError, match="1") as caught:
        clone(_Hooks()).call([])
    last = caught.traceback[-1]
    assert (Path(str(last.path)).name, last.lineno + 1) == ("generated.py", 3)


def test_a_module_without_a_python_wrapper_has_no_clone() -> None:
    assert read_wrapper("call = load_binary()").copy is None


def test_stack_traces_of_every_python_version() -> None:
    text = (
        '  File "/home/me/my model.py", line 12, in forward\n'
        "    return self.fc(x) + helper(x)\n"
        "           ^^^^^^^^^^\n"
        '  File "/home/me/util.py", line 3, in helper\n'
        '  File "<string>", line 1, in <lambda>\n'
        "    x * 2\n"
        "    ~~^~~\n"
    )
    assert parse_stack_trace(text) == (
        SourceFrame("/home/me/my model.py", 12, "forward", "return self.fc(x) + helper(x)"),
        SourceFrame("/home/me/util.py", 3, "helper", ""),
        SourceFrame("<string>", 1, "<lambda>", "x * 2"),
    )
    assert parse_stack_trace(None) == ()


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self']", ""),
        ("L['self'].blocks.0.attn", "blocks.0.attn"),
        ("L['self']._modules['blocks']._modules['0']", "blocks.0"),
        ("L['self'].blocks[0].attn", "blocks.0.attn"),
        ("G['model'].fc", "fc"),
        ("L['fn'].__self__.fc", "fc"),
        ("encoder.layer.1", "encoder.layer.1"),
    ],
)
def test_module_paths(source: str, path: str) -> None:
    assert clean_module_path(source) == path


def test_the_innermost_module_counts() -> None:
    stack = {"1": ("L['self'].a", "pkg.Outer"), "2": ("L['self'].a.b", "pkg.Inner")}
    assert innermost_module(stack) == ("a.b", "Inner")
    assert innermost_module({}) is None
    assert innermost_module(None) is None
