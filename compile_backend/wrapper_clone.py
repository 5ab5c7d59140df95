"""A changed copy of a generated wrapper, made to run in the module it comes from.

The copy is built inside a factory function: what it needs beyond the module's own globals
are the factory's parameters, so nothing is written to the module, and two threads can have
two copies. Line numbers stay, so tracebacks point into the generated file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .provenance.generated_code import wrapper_functions

_FACTORY = "__memprof_factory__"

Boxed = Callable[..., Any]


@dataclass(frozen=True)
class Clone:
    """A copy whose parameters have values.

    Attributes:
        partitions: its partition functions, in order.
        bind: from the functions to run for the partitions, in order, to ``call``.
    """

    partitions: tuple[Boxed, ...]
    bind: Callable[[Sequence[Boxed]], Boxed]

    @property
    def call(self) -> Boxed:
        """The copy's ``call``, which runs the copies of its partitions."""
        return self.bind(self.partitions)


def clone_factory(
    tree: ast.Module, parameters: Sequence[str], path: str, module_globals: dict[str, Any]
) -> Callable[..., Clone]:
    """From the values of ``parameters`` to a copy.

    Args:
        tree: a generated module, its wrapper functions changed as wanted.
        parameters: names that the changed functions use.
        path: file name of the module.
        module_globals: its globals, used as they are.
    """
    functions = dict(wrapper_functions(tree))
    method = "Runner.call" in functions
    body: list[ast.stmt] = [
        top
        for top in tree.body
        if (isinstance(top, ast.ClassDef) and top.name == "Runner")
        or (isinstance(top, ast.FunctionDef) and top.name in functions)
    ]
    factory = ast.parse(f"def {_FACTORY}({', '.join(parameters)}): pass").body[0]
    assert isinstance(factory, ast.FunctionDef)
    factory.body = [*body, *ast.parse("return locals()").body]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    local: dict[str, Any] = {}
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
    found: list[Any] = []
    while (function := module_globals.get(f"partition_{len(found)}")) is not None:
        found.append(function)
    return found
