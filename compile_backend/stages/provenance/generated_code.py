"""Inductor's generated wrapper: what each statement does to buffers, and changed copies of it.

The wrapper is Python: a ``call(args)`` (a method of ``Runner`` in current versions), and
functions beside it for graph partitions and for the branches of control flow.

A changed copy is built inside a factory function: what it needs beyond the module's own globals are
the factory's parameters, so nothing is written to the module, and two threads can have two copies.
Line numbers stay, so tracebacks point into the generated file.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from memprof.profiler.model import Statement, StatementKind

_ALLOCATORS = re.compile(r"^(empty_strided(_\w+)?|tracked_empty_strided|async_.*empty.*)$")
_VIEWS = {"reinterpret_tensor", "alloc_from_pool"}
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


def call_function(tree: ast.Module) -> ast.FunctionDef | None:
    """Function that a generated module runs at each call, None if it has no Python wrapper."""
    functions = dict(wrapper_functions(tree))
    return functions.get("Runner.call", functions.get("call"))


def statements(source: str) -> tuple[Statement, ...]:
    """The statements of all wrapper functions of ``source``, in line order.

    Raises:
        SyntaxError: ``source`` is not Python, for example C++ wrapper code.
    """
    lines = source.splitlines()
    found: list[Statement] = []
    for name, function in wrapper_functions(ast.parse(source)):
        for st in _flatten(function.body):
            kind, targets, reads = _classify(st)
            text = lines[st.lineno - 1].strip()
            found.append(Statement(st.lineno, kind, targets, reads, text, name))
    return tuple(sorted(found, key=lambda s: s.line))


def _flatten(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for st in body:
        if isinstance(st, (ast.With, ast.If, ast.For, ast.While)):
            yield from _flatten(st.body)
            yield from _flatten(getattr(st, "orelse", []))
        elif not isinstance(st, ast.FunctionDef):
            yield st


def _classify(st: ast.stmt) -> tuple[StatementKind, tuple[str, ...], tuple[str, ...]]:
    if isinstance(st, ast.Assign):
        if isinstance(st.targets[0], ast.Name) and isinstance(st.value, ast.Name):
            return StatementKind.REUSE, (st.targets[0].id,), (st.value.id,)
        return _classify_assignment(target_names(st.targets[0]), st.value)
    if isinstance(st, ast.Delete):
        return StatementKind.DELETE, tuple(n for t in st.targets for n in target_names(t)), ()
    if isinstance(st, ast.Return):
        return StatementKind.RETURN, (), _names(st.value) if st.value else ()
    if isinstance(st, ast.Expr) and isinstance(st.value, ast.Call):
        function = ast.unparse(st.value.func)
        if function in _CHECKS or function.endswith(".clear"):
            return StatementKind.OTHER, (), ()
        return StatementKind.KERNEL, (), _kernel_arguments(st.value)
    return StatementKind.OTHER, (), ()


def _classify_assignment(
    targets: tuple[str, ...], value: ast.expr
) -> tuple[StatementKind, tuple[str, ...], tuple[str, ...]]:
    if isinstance(value, ast.Subscript):
        return StatementKind.GETITEM, targets, _names(value.value)
    if isinstance(value, ast.Call):
        head = value
        # empty_strided_cuda(...).as_strided(...) where the allocation is padded
        while isinstance(head.func, ast.Attribute) and isinstance(head.func.value, ast.Call):
            head = head.func.value
        function = ast.unparse(head.func)
        if _ALLOCATORS.match(function):
            return StatementKind.ALLOC, targets, ()
        if function in _VIEWS:
            return StatementKind.VIEW, targets, _names(value.args[0])
        if function.startswith(("self.partitions", "partition_")):
            return StatementKind.CALL, targets, _names(value)
        if function.endswith(("get_raw_stream", ".size", ".stride", ".item")):
            return StatementKind.OTHER, targets, _names(value)
        return StatementKind.FALLBACK, targets, _names(value)
    return StatementKind.OTHER, targets, _names(value)


def target_names(target: ast.expr) -> tuple[str, ...]:
    """Names that an assignment to ``target`` binds, or ``del`` of it unbinds, in order."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(n for e in target.elts for n in target_names(e))
    if isinstance(target, ast.Starred):
        return target_names(target.value)
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


# --- copies of the wrapper -------------------------------------------------------------------

_FACTORY = "__memprof_factory__"

Boxed = Callable[..., Any]


class Clone(NamedTuple):
    """A copy whose parameters have values: its partition functions, in order; ``bind`` gives its
    ``call`` which runs others for them."""

    partitions: tuple[Boxed, ...]
    bind: Callable[[Sequence[Boxed]], Boxed]

    @property
    def call(self) -> Boxed:
        """The copy's ``call``, which runs the copies of its partitions."""
        return self.bind(self.partitions)


def clone_factory(
    tree: ast.Module, parameters: Sequence[str], module_globals: dict[str, Any]
) -> Callable[..., Clone]:
    """Return a function that makes a copy of the module's ``call`` from values of ``parameters``.

    Args:
        tree: a generated module, its wrapper functions changed as wanted.
        parameters: names that the changed functions use beside ``module_globals``.
    """
    functions = dict(wrapper_functions(tree))
    method = "Runner.call" in functions
    body: list[ast.stmt] = [
        top
        for top in tree.body
        if isinstance(top, (ast.ClassDef, ast.FunctionDef)) and top.name in {"Runner", *functions}
    ]
    factory = ast.parse(f"def {_FACTORY}({', '.join(parameters)}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [*body, *ast.parse("return locals()").body]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    local: dict[str, Any] = {}
    path = module_globals.get("__file__", "<generated>")
    exec(compile(module, path, "exec"), module_globals, local)
    build = local[_FACTORY]

    def make(*arguments: Any) -> Clone:
        made = build(*arguments)
        if not method:
            return Clone((), lambda _: made["call"])
        partitions = tuple(made[p.__name__] for p in partition_functions(module_globals))
        return Clone(partitions, lambda functions: made["Runner"](list(functions)).call)

    return make


def partition_functions(module_globals: dict[str, Any]) -> list[Any]:
    """The partition functions that the module's own runner was made with, in order."""
    numbered = (module_globals.get(f"partition_{i}") for i in itertools.count())
    return list(itertools.takewhile(lambda function: function is not None, numbered))
