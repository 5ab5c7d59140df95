"""Inductor's generated wrapper: what each statement does to buffers, and instrumented copies of it.

The wrapper is Python: a ``call(args)`` (a method of ``Runner`` in current versions), and
functions beside it for graph partitions and for the branches of control flow.

An instrumented copy is built inside a factory function whose parameter is the object that the copy
reports to, so nothing is written to the module, and two threads can have two copies. It uses the
module's own globals, with the same kernels, constants and streams, and keeps the line numbers, so
it computes the same values and its tracebacks still point into the generated file. Only calls to
hooks, which never raise, are added:

    hooks.at(line)                    before each statement
    hooks.bound(name, value)          after ``name = …``
    hooks.dropped(names)              after ``del names``

Reading the code is what costs: a graph of GPT-2 with 6 layers takes 80 ms, and the objects of its
syntax tree set off collections of all that torch holds. So it is read once, by whoever compiled it,
and what was read is stored beside the code (``artifact.py``).
"""

from __future__ import annotations

import ast
import itertools
import marshal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, NamedTuple

from memprof.profiler.model import Statement
from memprof.profiler.support.process_hooks import collector_paused

_CHECKS = {"assert_size_stride", "assert_alignment"}
_NOT_WRAPPER = {"__init__", "recursively_apply_fns"}
_NOT_WRAPPER_FUNCTIONS = {"get_args", "benchmark_compiled_module"}


def wrapper_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a generated module that run at each call, with qualified names."""
    for top in tree.body:
        if isinstance(top, ast.FunctionDef) and top.name not in _NOT_WRAPPER_FUNCTIONS:
            yield top.name, top
        elif isinstance(top, ast.ClassDef) and top.name == "Runner":
            for member in top.body:
                if isinstance(member, ast.FunctionDef) and member.name not in _NOT_WRAPPER:
                    yield f"Runner.{member.name}", member


@dataclass(frozen=True, slots=True)
class WrapperCode:
    """What is read off the source of a generated module.

    Attributes:
        statements: of all wrapper functions, in line order; without their texts where stored.
        copy: code object of the instrumented copy's factory, marshalled; None where the module has
            no Python wrapper (C++ wrapper code), so that no copy can be made.
    """

    statements: tuple[Statement, ...] = ()
    copy: bytes | None = None

    def without_texts(self) -> WrapperCode:
        """The same without the texts of the statements, which the source has."""
        return replace(self, statements=tuple(replace(s, text="") for s in self.statements))

    def with_texts(self, source: str) -> WrapperCode:
        """The same with the texts of the statements, taken from ``source``."""
        lines = source.splitlines()
        found = (replace(s, text=lines[s.line - 1].strip()) for s in self.statements)
        return replace(self, statements=tuple(found))


def read_wrapper(source: str) -> WrapperCode:
    """Reads the source of a generated module, which is parsed once.

    Raises:
        SyntaxError: ``source`` is not Python.
    """
    with collector_paused():
        tree = ast.parse(source)
        functions = list(wrapper_functions(tree))
        found = statements(functions, source.splitlines())
        return WrapperCode(found, _instrumented_copy(tree) if functions else None)


def statements(
    functions: Sequence[tuple[str, ast.FunctionDef]], lines: Sequence[str]
) -> tuple[Statement, ...]:
    """The statements of ``functions``, in line order; ``lines`` are those of their source."""
    found: list[Statement] = []
    for name, function in functions:
        for st in _flatten(function.body):
            targets, reads = _names_in(st)
            text = lines[st.lineno - 1].strip()
            found.append(Statement(st.lineno, targets, reads, text, name))
    return tuple(sorted(found, key=lambda s: s.line))


def _flatten(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for st in body:
        if isinstance(st, (ast.With, ast.If, ast.For, ast.While)):
            yield from _flatten(st.body)
            yield from _flatten(getattr(st, "orelse", []))
        elif not isinstance(st, ast.FunctionDef):
            yield st


def _names_in(st: ast.stmt) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that a statement assigns, and names that it reads; none of a deletion or a check."""
    if isinstance(st, ast.Assign):
        return target_names(st.targets[0]), _names(st.value)
    if isinstance(st, ast.Return) and st.value is not None:
        return (), _names(st.value)
    if isinstance(st, ast.Expr) and isinstance(st.value, ast.Call):
        function = ast.unparse(st.value.func)
        if function not in _CHECKS and not function.endswith(".clear"):
            return (), _kernel_arguments(st.value)
    return (), ()


def target_names(target: ast.expr) -> tuple[str, ...]:
    """Names that an assignment to ``target`` binds, or ``del`` of it unbinds, in order."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(n for e in target.elts for n in target_names(e))
    return ()


def _kernel_arguments(call: ast.Call) -> tuple[str, ...]:
    """Names among the arguments in order, those of ``out=`` last."""
    out = [k.value for k in call.keywords if k.arg == "out"]
    other = [*call.args, *(k.value for k in call.keywords if k.arg not in ("out", "stream"))]
    return tuple(dict.fromkeys(n for e in [*other, *out] for n in _names(e)))


def _names(expression: ast.expr) -> tuple[str, ...]:
    calls = [c for c in ast.walk(expression) if isinstance(c, ast.Call)]
    callees = {id(n) for c in calls for n in ast.walk(c.func)}
    found = [n for n in ast.walk(expression) if isinstance(n, ast.Name) and id(n) not in callees]
    found.sort(key=lambda n: (n.lineno, n.col_offset))
    return tuple(dict.fromkeys(n.id for n in found if n.id not in ("torch", "self")))


# --- instrumented copies ---------------------------------------------------------------------

_FACTORY = "__memprof_factory__"
_HOOKS = "__memprof_hooks__"

Boxed = Callable[..., Any]


def _instrumented_copy(tree: ast.Module) -> bytes | None:
    """Code of a factory of instrumented copies, marshalled; ``tree`` is changed. None where nothing
    in it is called at each call of the graph."""
    functions = dict(wrapper_functions(tree))
    if not functions.keys() & {"Runner.call", "call"}:
        return None
    for function in functions.values():
        function.body = _instrumented(function.body)
    body: list[ast.stmt] = [
        top
        for top in tree.body
        if isinstance(top, (ast.ClassDef, ast.FunctionDef)) and top.name in {"Runner", *functions}
    ]
    factory = ast.parse(f"def {_FACTORY}({_HOOKS}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [*body, *ast.parse("return locals()").body]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    return marshal.dumps(compile(module, "<generated>", "exec"))


def _instrumented(body: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for st in body:
        for part in ("body", "orelse"):
            if isinstance(inner := getattr(st, part, None), list):
                setattr(st, part, _instrumented(inner))
        if not isinstance(st, ast.FunctionDef):
            out.append(_hook(st, "at", ast.Constant(st.lineno)))
        out.append(st)
        # A list of arguments for a partition makes nothing and owns nothing.
        if isinstance(st, ast.Assign) and not isinstance(st.value, (ast.List, ast.Tuple)):
            names = [n for t in st.targets for n in target_names(t)]
            out.extend(_hook(st, "bound", ast.Constant(n), ast.Name(n, ast.Load())) for n in names)
        elif isinstance(st, ast.Delete):
            names = [n for t in st.targets for n in target_names(t)]
            if names:
                constants: list[ast.expr] = [ast.Constant(n) for n in names]
                out.append(_hook(st, "dropped", ast.Tuple(constants, ast.Load())))
    return out


def _hook(at: ast.stmt, name: str, *arguments: ast.expr) -> ast.stmt:
    # Built, not parsed: a large graph has thousands of statements.
    function = ast.Attribute(ast.Name(_HOOKS, ast.Load()), name, ast.Load())
    statement = ast.Expr(ast.Call(function, list(arguments), []))
    for node in ast.walk(statement):
        ast.copy_location(node, at)
    return statement


class Clone(NamedTuple):
    """A copy that reports to its hooks: its partition functions, in order; ``bind`` gives its
    ``call`` which runs others for them."""

    partitions: tuple[Boxed, ...]
    bind: Callable[[Sequence[Boxed]], Boxed]

    @property
    def call(self) -> Boxed:
        """The copy's ``call``, which runs the copies of its partitions."""
        return self.bind(self.partitions)


def clone_factory(copy: bytes, module_globals: dict[str, Any]) -> Callable[[Any], Clone]:
    """Returns a function that takes hooks and makes a copy of the module's ``call``.

    Args:
        copy: of the module's ``WrapperCode``.
        module_globals: of the generated module; they are used as they are and not changed.
    """
    code: CodeType = marshal.loads(copy)
    local: dict[str, Any] = {}
    exec(_in_file(code, module_globals.get("__file__", "<generated>")), module_globals, local)
    build = local[_FACTORY]

    def make(hooks: Any) -> Clone:
        made = build(hooks)
        if "Runner" not in made:
            return Clone((), lambda _: made["call"])
        partitions = tuple(made[p.__name__] for p in partition_functions(module_globals))
        return Clone(partitions, lambda functions: made["Runner"](list(functions)).call)

    return make


def _in_file(code: CodeType, path: str) -> CodeType:
    """``code`` as compiled from the file at ``path``, which another process may have elsewhere."""
    inner = (_in_file(c, path) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(inner))


def partition_functions(module_globals: dict[str, Any]) -> list[Any]:
    """The partition functions that the module's own runner was made with, in order."""
    numbered = (module_globals.get(f"partition_{i}") for i in itertools.count())
    return list(itertools.takewhile(lambda function: function is not None, numbered))
