"""FX graphs as text that says what is computed and nothing else.

Note [What a stable graph text leaves out]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Two torch versions that compute the same thing still print different graphs. Left out or made
canonical are:

* node names: values are named after their operator and numbered in order (``mm``, ``mm_1``),
  inputs ``arg0``, ``arg1``, ..., constants ``constant0``, subgraphs ``subgraph0``;
* size symbols: ``s0``, ``s1``, ... (backed) and ``u0``, ``u1``, ... (unbacked) in order of
  appearance;
* arguments equal to the operator schema's default, because versions add arguments, and
  ``device``, ``layout`` and ``pin_memory``, which say where and not what;
* devices, addresses, file paths, metadata other than dtype, shape and stride.

A stride is printed only where it differs from a contiguous tensor's: it decides bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

_PLACE = frozenset({"device", "layout", "pin_memory"})
_SYMBOL = re.compile(r"\b(?P<kind>[su])\d+\b")


def graph_text(gm: GraphModule) -> str:
    """The graph of ``gm``, one node a line, subgraphs after it.

    The text is the same on every supported torch version and device where the graph is the
    same; see Note [What a stable graph text leaves out]. It ends with a newline.

    Raises:
        TypeError: ``gm`` is not a ``torch.fx.GraphModule``.
    """
    if not isinstance(gm, GraphModule):
        raise TypeError(
            f"graph_text wants a torch.fx.GraphModule, got {type(gm).__name__}: "
            "for a compiled callable, capture the module in the backend first"
        )
    symbols = _Symbols()
    texts: list[str] = []
    pending = [("graph", gm)]
    while pending:
        title, module = pending.pop(0)
        printer = _Printer(module, symbols, first_subgraph=len(texts) + len(pending))
        texts.append("\n".join([f"{title}:", *(f"    {line}" for line in printer.lines())]))
        pending += printer.subgraphs
    return "\n\n".join(texts) + "\n"


class _Symbols:
    """Renames size symbols in order of appearance, over all subgraphs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._next: Counter[str] = Counter()

    def rename(self, expression: str) -> str:
        return _SYMBOL.sub(self._canonical, expression)

    def _canonical(self, match: re.Match[str]) -> str:
        name, kind = match[0], match["kind"]
        if name not in self._names:
            self._names[name] = f"{kind}{self._next[kind]}"
            self._next[kind] += 1
        return self._names[name]


class _Printer:
    """Prints one graph."""

    def __init__(self, gm: GraphModule, symbols: _Symbols, first_subgraph: int) -> None:
        self.gm = gm
        self.symbols = symbols
        self.first_subgraph = first_subgraph
        self.subgraphs: list[tuple[str, GraphModule]] = []
        self._names: dict[Node, str] = {}
        self._used: Counter[str] = Counter()

    def lines(self) -> Iterable[str]:
        for node in self.gm.graph.nodes:
            if node.op == "output":
                yield f"return {self._value(node.args[0])}"
            else:
                # Right side first: a node never refers to itself.
                right = self._call(node)
                yield f"{self._name(node)} = {right}{self._type(node)}"

    def _call(self, node: Node) -> str:
        if node.op == "placeholder":
            return "input"
        if node.op == "get_attr":
            return self._attribute(node)
        if isinstance(node.target, torch._ops.OpOverload):
            arguments = self._schema_arguments(node, node.target)
        else:
            arguments = [self._value(a) for a in node.args]
            arguments += [
                f"{k}={self._value(v)}" for k, v in sorted(node.kwargs.items()) if k not in _PLACE
            ]
        return f"{_target(node)}({', '.join(arguments)})"

    def _schema_arguments(self, node: Node, op: torch._ops.OpOverload[Any, Any]) -> list[str]:
        """Arguments in the order of the schema, those left at their default not."""
        out = []
        positional = True
        for i, argument in enumerate(op._schema.arguments):
            if i < len(node.args):
                value = node.args[i]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                positional = False
                continue
            default = argument.has_default_value() and value == argument.default_value
            if argument.name in _PLACE or default:
                positional = False
            elif positional and not argument.kwarg_only:
                out.append(self._value(value))
            else:
                out.append(f"{argument.name}={self._value(value)}")
        return out

    def _attribute(self, node: Node) -> str:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, GraphModule):
            title = f"subgraph{self.first_subgraph + len(self.subgraphs)}"
            self.subgraphs.append((title, value))
            self._names[node] = title
            return "graph"
        return "constant"

    def _name(self, node: Node) -> str:
        if node not in self._names:
            if node.op == "placeholder":
                self._names[node] = f"arg{self._count('arg')}"
            elif node.op == "get_attr":
                self._names[node] = f"constant{self._count('constant')}"
            else:
                base = _base_name(node)
                number = self._count(base)
                self._names[node] = f"{base}_{number}" if number else base
        return self._names[node]

    def _count(self, base: str) -> int:
        self._used[base] += 1
        return self._used[base] - 1

    def _type(self, node: Node) -> str:
        value = node.meta.get("val", node.meta.get("example_value"))
        text = self._type_of(value)
        return f" : {text}" if text else ""

    def _type_of(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            text = f"{_plain(value.dtype)}[{self._sizes(value.shape)}]"
            if value.layout is torch.strided and not _contiguous(value):
                text += f" stride ({self._sizes(value.stride())})"
            return text
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return f"{type(value).__name__} {self.symbols.rename(str(value))}"
        if isinstance(value, list | tuple):
            return f"({', '.join(self._type_of(v) or 'None' for v in value)})"
        return ""

    def _sizes(self, sizes: Iterable[int | torch.SymInt]) -> str:
        return ", ".join(self.symbols.rename(str(s)) for s in sizes)

    def _value(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._name(value)
        if isinstance(value, tuple):
            return f"({', '.join(map(self._value, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self._value(v)}' for k, v in value.items())}}}"
        if isinstance(value, slice):
            return ":".join("" if v is None else self._value(v) for v in (value.start, value.stop))
        if isinstance(value, torch.device):
            return "device"
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return _plain(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.symbols.rename(str(value))
        if value is None or isinstance(value, bool | int | float | complex | str):
            return repr(value)
        if callable(value):
            return _qualified(value)
        return f"<{type(value).__name__}>"  # its repr may hold an address


def _contiguous(tensor: torch.Tensor) -> bool:
    """Whether the strides are a contiguous tensor's, symbol by symbol.

    ``Tensor.is_contiguous`` would guard on symbolic sizes and ignores dimensions of size 1
    whose strides versions set differently; those are ignored here too.
    """
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if str(size) == "0":
            return True
        if str(size) != "1":
            if str(stride) != str(expected):
                return False
            expected = expected * size
    return True


def _plain(value: object) -> str:
    return str(value).removeprefix("torch.")


def _base_name(node: Node) -> str:
    """What a value is named after: ``mm`` for ``aten.mm.default``."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.overloadpacket.__name__)
    return re.sub(r"\W", "_", _target(node).rsplit(".", 1)[-1])


def _target(node: Node) -> str:
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if isinstance(node.target, str):  # call_module
        return f"module {node.target}"
    return _qualified(node.target)


def _qualified(target: Callable[..., Any]) -> str:
    """The public name of a function or operator."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target._name}"
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", type(target).__name__)
    if module in ("_operator", "math", "builtins"):
        return name
    # Functions written in C++ name private modules that move between versions.
    if module.startswith("torch._C") or module in ("", "torch"):
        return f"torch.{name}"
    return f"{module}.{name}"
