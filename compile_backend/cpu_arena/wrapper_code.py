"""Generated wrapper code: which allocations could be served otherwise, and a clone that does.

The clone is the generated ``call`` with single allocations replaced. It runs in the same
module globals with the same kernels in the same order, and keeps the line numbers.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from ..provenance.generated_code import call_function, clone_factory, target_names

_SCRATCH = "_memprof_scratch"
_LEASE = "_memprof_lease"

# Operators that neither keep their arguments nor go on using them when they have returned.
_TRUSTED_OPERATORS = {
    *("aten", "prims", "prim", "inductor", "inductor_prims", "mkl", "mkldnn", "onednn"),
    *("quantized", "_quantized", "quantized_decomposed", "mkldnn_prepacked"),
}
_TRUSTED_FUNCTIONS = {
    *("empty_strided_cpu", "reinterpret_tensor", "alloc_from_pool"),
    *("assert_size_stride", "assert_alignment"),
}


class WrapperCode(NamedTuple):
    """What one generated wrapper allocates.

    Attributes:
        allocations: lines with ``name = empty_strided_cpu(size, stride, dtype)``, executed once a
            call, with the name; 1-based.
        arguments: of each of these lines, source text of ``(size, stride, dtype)``.
        unsafe: names that reach code that might keep what it is given, or that is not
            understood, themselves or through a view.
        inputs: names of the inputs, in order.
        sizes: further names of integer inputs, by name: ``s0 = arg0_1``.
    """

    source: str
    allocations: Mapping[int, str]
    arguments: Mapping[int, str]
    unsafe: Set[str]
    inputs: tuple[str, ...]
    sizes: Mapping[str, str]


def read_wrapper(source: str) -> WrapperCode | None:
    """Read what a generated module allocates; None if it has no Python wrapper."""
    try:
        call = call_function(ast.parse(source))
    except SyntaxError:
        return None
    if call is None:
        return None
    allocations: dict[int, str] = {}
    arguments: dict[int, str] = {}
    unsafe: set[str] = set()
    views: list[tuple[set[str], set[str]]] = []
    inputs: tuple[str, ...] = ()
    sizes: dict[str, str] = {}
    local = {
        n.id for n in ast.walk(call) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    for st in _flat(call.body):
        names = _loaded(st) & local
        if not _understood(st):
            unsafe |= names
        if not isinstance(st, ast.Assign):
            continue
        targets = {n.id for t in st.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        views.append((targets, _shared(st.value) & local))
        target, value = st.targets[0], st.value
        if isinstance(value, ast.Name) and value.id == "args":
            inputs = target_names(target)
        elif isinstance(value, ast.Name) and isinstance(target, ast.Name):
            sizes[target.id] = value.id
        elif isinstance(target, ast.Name) and isinstance(value, ast.Call):
            is_plain = len(value.args) == 3 and not value.keywords
            if is_plain and ast.unparse(value.func) == "empty_strided_cpu":
                allocations[st.lineno] = target.id
                arguments[st.lineno] = ast.unparse(ast.Tuple(value.args, ast.Load()))
    return WrapperCode(source, allocations, arguments, _spread(unsafe, views), inputs, sizes)


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run once a call; compound ones other than ``with`` as one."""
    for st in body:
        if isinstance(st, ast.With):
            yield from _flat(st.body)
        else:
            yield st


def _loaded(st: ast.stmt) -> set[str]:
    return {n.id for n in ast.walk(st) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


_SIZE = re.compile(r"[suz]\d+$")
"""How Inductor names sizes."""


def _shared(value: ast.expr) -> set[str]:
    """Names whose memory what is assigned here might share."""
    if isinstance(value, ast.Call):
        function = ast.unparse(value.func)
        if function == "empty_strided_cpu" or function.endswith((".item", ".size", ".stride")):
            return set()
        if function in ("reinterpret_tensor", "alloc_from_pool"):
            value = value.args[0]
    return {n.id for n in ast.walk(value) if isinstance(n, ast.Name) and not _SIZE.match(n.id)}


def _understood(st: ast.stmt) -> bool:
    if isinstance(st, (ast.Delete, ast.Return, ast.Pass)):
        return True
    if not isinstance(st, (ast.Assign, ast.Expr)):
        return False
    value = st.value
    if isinstance(value, (ast.Name, ast.Constant)):
        return True
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Name)
    if isinstance(value, ast.Call):
        return all(_trusted(c.func) for c in ast.walk(value) if isinstance(c, ast.Call))
    # Arithmetic on sizes.
    return not any(
        isinstance(n, (ast.Call, ast.List, ast.Tuple, ast.Dict)) for n in ast.walk(value)
    )


def _trusted(callee: ast.expr) -> bool:
    text = ast.unparse(callee)
    root, *rest = text.split(".")
    if "resize" in text or "set_" in text or "share_memory" in text:
        return False
    if root == "torch" and rest[:1] == ["ops"]:
        return len(rest) > 1 and rest[1] in _TRUSTED_OPERATORS
    if root in ("aten", "extern_kernels"):
        return True
    if not rest:
        return root in _TRUSTED_FUNCTIONS or root.startswith("cpp_")
    return rest[-1] in ("clear", "item", "size", "stride", "as_strided")


def _spread(unsafe: set[str], views: list[tuple[set[str], set[str]]]) -> set[str]:
    """With a name, what shares or might share its memory is unsafe too."""
    spread: set[str] = set()
    more = set(unsafe)
    while more - spread:
        spread |= more
        more = set().union(*(t | s for t, s in views if (t | s) & spread))
    return spread


ScratchCall = Callable[[list[Any], Sequence[Any]], Any]
"""A boxed ``call`` with the scratch's tensors as its second argument."""


def rewritten(
    code: WrapperCode,
    module_globals: dict[str, Any],
    scratch: Sequence[int],
    leases: Mapping[int, Callable[[], Any]],
) -> ScratchCall:
    """Make the clone, see the top of this file.

    Args:
        scratch: lines whose allocation becomes element 0, 1, … of the scratch's tensors. These are
            an argument of the clone: it may be a class, which would keep them in a reference cycle.
        leases: by line, what is called instead of the allocation.
    """
    tree = ast.parse(code.source)
    call = call_function(tree)
    assert call is not None
    call.args.args.append(ast.arg(_SCRATCH))
    replace = {line: f"{_SCRATCH}[{i}]" for i, line in enumerate(scratch)}
    replace |= {line: f"{_LEASE}_{i}()" for i, line in enumerate(leases)}
    for st in _flat(call.body):
        text = replace.get(st.lineno)
        if text is not None and isinstance(st, ast.Assign):
            value = ast.parse(text, mode="eval").body
            for node in ast.walk(value):
                ast.copy_location(node, st)
            st.value = value
    names = [f"{_LEASE}_{i}" for i in range(len(leases))]
    made: ScratchCall = clone_factory(tree, names, module_globals)(*leases.values()).call
    return made


def evaluate(
    code: WrapperCode, module_globals: dict[str, Any], sizes: Sequence[int], key: Sequence[int]
) -> dict[int, tuple[tuple[int, ...], tuple[int, ...], Any]]:
    """``(size, stride, dtype)`` of each allocation, by line; those that depend on more than
    the integer inputs, which are ``sizes`` and have the values ``key``, are left out."""
    known: dict[str, Any] = {
        code.inputs[i]: value for i, value in zip(sizes, key, strict=True) if i < len(code.inputs)
    }
    for name, source in code.sizes.items():
        if source in known:
            known[name] = known[source]
    found = {}
    for line, arguments in code.arguments.items():
        with contextlib.suppress(NameError):
            found[line] = eval(arguments, module_globals, known)
    return found
