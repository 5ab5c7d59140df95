"""A clone of a generated wrapper that reports what it does, line by line.

The clone runs in the *same* module globals, with the same kernels, constants and streams,
and keeps the original line numbers, so it computes the same values and its tracebacks
still point into the generated file. Only calls to hooks are added:

    hooks.at(line)                    before each statement
    hooks.bound(name, value)          after ``name = …``
    hooks.dropped(names)              after ``del names``

None of these may raise. They are the ``Recorder``'s.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..provenance.generated_code import (
    Clone,
    call_function,
    clone_factory,
    target_names,
    wrapper_functions,
)

_HOOKS = "__memprof_hooks__"


InstrumentedCall = Callable[[Any], Clone]
"""From hooks to a copy that calls them."""


def instrument(source: str, module_globals: dict[str, Any]) -> InstrumentedCall | None:
    """Build the clone of a generated module's ``call``; None if the module has no Python wrapper
    (C++ wrapper code). Its globals are used as they are and not changed."""
    tree = ast.parse(source)
    if call_function(tree) is None:
        return None
    for _, function in wrapper_functions(tree):
        function.body = _instrumented(function.body)
    return clone_factory(tree, [_HOOKS], module_globals)


def _instrumented(body: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for st in body:
        if isinstance(st, (ast.With, ast.If, ast.For, ast.While)):
            st.body = _instrumented(st.body)
            if isinstance(st, (ast.If, ast.For, ast.While)):
                st.orelse = _instrumented(st.orelse)
        if isinstance(st, ast.FunctionDef):
            st.body = _instrumented(st.body)
            out.append(st)
            continue
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
