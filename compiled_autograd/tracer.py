"""The FX graph under construction, and which of its nodes each value in the engine's hands is.

Note [Tracing without make_fx]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The engine walks the autograd graph and asks for one call after another; it passes objects from call
to call, and looks inside none of them. So a gradient is an empty fake tensor of no particular
shape, known by its identity, and a call is one node with no operator run. torch's own compiled
autograd does the same on top of make_fx's tracer, whose proxies, symbolic inputs and metadata are
most of what a capture costs. Inputs are fakes with their sizes as numbers.

Some code does run tensor operators while the engine walks, which arrive in ``_OperatorRecorder``.
For a gradient that did not arrive, an autograd.Function gets zeros, of sizes that the engine itself
lifted or guards: they become a node too. Of a C++ node that overrides ``apply_with_saved`` itself
they may be any: on a gradient, whose shape is unknown, or on inputs, for whose sizes alone the
graph would be right. Then there is no graph (``refused``). The capture goes on to its end all the
same: C++ puts back what a forward has saved only after a node of which nothing was raised.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._pytree import tree_map

from . import _torch_compat, nodes as meta
from .errors import CaptureError
from .nodes import PLACEHOLDERS, NodeOrigin, ValueInfo

Origins = Sequence[tuple[int, str]]


class GraphTracer:
    def __init__(self) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        """Owner of the attributes that the graph's ``get_attr`` nodes read."""
        self.fake_mode = _torch_compat.new_fake_mode()
        self.origin: NodeOrigin | None = None
        """Origin put on every node made from here on."""
        self.in_python_node = False
        """Whether the current autograd node is an autograd.Function's."""
        self.refused: Exception | None = None
        """Why there is no graph, None if there is one: Note [Tracing without make_fx]."""
        self._stack = contextlib.ExitStack()
        # By id() of a value, which stays its own as long as the value is kept.
        self._nodes: dict[int, tuple[Any, Node]] = {}
        self._symbols: dict[Any, Proxy] = {}
        self._proxies = GraphAppendingTracer(self.graph)
        self.placeholders = {name: self.graph.placeholder(name) for name in PLACEHOLDERS}
        self._items: dict[tuple[str, int], Node] = {}
        self._last_item = self.placeholders[PLACEHOLDERS[-1]]

    # --- begin and end --------------------------------------------------------------------

    def start(self) -> None:
        """From here on, tensor operators are recorded."""
        for context in (
            _torch_compat.enable_python_dispatcher(),  # no size is hashed
            self.fake_mode,
            _OperatorRecorder(self),
            _torch_compat.disable_autocast_cache(),
            _torch_compat.without_guards(self.fake_mode),
        ):
            self._stack.enter_context(context)

    def stop(self) -> None:
        """Leave every mode; may be called more than once."""
        self._stack.close()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Inside, what is raised says why there is no graph: Note [Tracing without make_fx]."""
        try:
            yield
        except Exception as error:
            self.refused = error

    # --- inputs ---------------------------------------------------------------------------

    def lift_tensors(self, tensors: list[torch.Tensor], origins: Origins = ()) -> None:
        """Replace each tensor in place by a fake that is bound to ``inputs[i]``.

        ``origins``, here and below: ``(call index, name)`` of the autograd node that each was
        lifted from; empty where nobody asked C++ for it.
        """
        groups: dict[int, int] = {}
        for i, tensor in enumerate(tensors):
            try:
                fake = _torch_compat.fake_of_input(self.fake_mode, tensor)
            except Exception as error:
                raise CaptureError(
                    f"input {i} is a {type(tensor).__name__} with layout {tensor.layout}, "
                    f"of which torch makes no fake tensor ({type(error).__name__}: {error})"
                ) from error
            node = self._lifted("inputs", i, origins)
            node.meta[meta.VALUE] = meta.of_tensor(tensor)
            if (name := meta.NAMES.get(tensor)) is not None:
                node.meta[meta.TENSOR_NAME] = name
            current = tensor.grad if tensor.is_leaf else None
            if current is not None:
                node.meta[meta.HAS_GRADIENT] = True
            for held, group in ((tensor, meta.INPUT_GROUP), (current, meta.GRADIENT_GROUP)):
                if held is not None:
                    if held.layout is not torch.strided:
                        node.meta[meta.LAYOUT] = held.layout
                    if (storage := _torch_compat.storage_key(held)) is not None:
                        node.meta[group] = groups.setdefault(storage, len(groups))
            self.bind(fake, node)
            tensors[i] = fake

    def lift_sizes(self, sizes: Sequence[int], origins: Origins = ()) -> list[Any]:
        """A symbol for each size, bound to ``sizes[i]``."""
        lifted = []
        for i, size in enumerate(sizes):
            symbol = _torch_compat.symbol(self.fake_mode, size, "sizes", i)
            if not isinstance(symbol, int):
                item = self._lifted("sizes", i, origins)
                self._last_item = self.call(_torch_compat.unwrap_size, (item,))
                self._last_item.meta |= item.meta
                self._bind_symbol(symbol, self._last_item)
            lifted.append(symbol)
        return lifted

    def lift_scalars(self, scalars: list[Any], origins: Origins = ()) -> None:
        """Replace each Python number in place by a symbol bound to ``scalars[i]``."""
        for i, value in enumerate(scalars):
            if not isinstance(value, (int, float)):
                raise CaptureError(f"scalar {i} is a {type(value).__name__}, not an int or float")
            symbol = _torch_compat.symbol(self.fake_mode, value, "scalars", i)
            if not isinstance(symbol, (int, float)):
                self._bind_symbol(symbol, self._lifted("scalars", i, origins))
            scalars[i] = symbol

    def _lifted(self, argument: str, index: int, origins: Origins) -> Node:
        node = self.part(self.placeholders[argument], index)
        if index < len(origins):
            call_index, name = origins[index]
            origin = node.meta[meta.LIFTED_FROM] = NodeOrigin(name, call_index)
            node.meta["stack_trace"] = origin.stack_trace
        self._last_item = node
        return node

    def item(self, placeholder: str, index: int) -> Node:
        """The node of ``<placeholder>[index]``.

        It goes to the top of the graph with the others: so nodes that use it can move.
        """
        if (node := self._items.get((placeholder, index))) is None:
            with self.graph.inserting_after(self._last_item):
                node = self.part(self.placeholders[placeholder], index)
            self._items[placeholder, index] = self._last_item = node
        return node

    # --- nodes ----------------------------------------------------------------------------

    def call(
        self,
        function: Callable[..., Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        node = self.graph.create_node("call_function", function, args, kwargs or {})
        self._mark(node)
        return node

    def part(self, node: Node, index: int) -> Node:
        return self.call(operator.getitem, (node, index))

    def _mark(self, node: Node) -> None:
        if self.origin is not None:
            node.meta[meta.ORIGIN] = self.origin
            node.meta.setdefault("stack_trace", self.origin.stack_trace)

    def new_value(self, node: Node, value: ValueInfo | None = None) -> torch.Tensor:
        """Something for the engine to pass around, bound to ``node``."""
        device = value.device if value is not None else torch.device("cpu")
        dummy = _torch_compat.dummy_tensor(self.fake_mode, device)
        self.bind(dummy, node)
        if value is not None:
            node.meta[meta.VALUE] = value
        return dummy

    def bind(self, value: Any, node: Node) -> None:
        self._nodes[id(value)] = (value, node)

    def _bind_symbol(self, symbol: Any, node: Node) -> None:
        self._symbols[symbol.node.expr] = Proxy(node, self._proxies)

    # --- values to nodes ------------------------------------------------------------------

    def lift(self, value: Any) -> Any:
        """``value`` with every tensor and symbol in it replaced by its node."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor_node(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._symbol_node(value)
        if type(value) is list:
            return [self.lift(v) for v in value]
        if type(value) is tuple:
            return tuple([self.lift(v) for v in value])
        if isinstance(value, (list, tuple, dict)):
            return tree_map(self.lift, value)
        return value

    def _tensor_node(self, tensor: torch.Tensor) -> Node:
        if (known := self._nodes.get(id(tensor))) is not None:
            return known[1]
        if isinstance(tensor, _torch_compat.FakeTensor):
            raise CaptureError(
                f"{self._where()} uses a tensor that was made at capture outside the graph"
            )
        name = f"_tensor_constant{len(self._nodes)}"
        setattr(self.root, name, tensor)
        node = self.graph.get_attr(name)
        self._mark(node)
        self.bind(tensor, node)
        return node

    def _symbol_node(self, value: Any) -> Any:
        expression = value.node.expr
        if expression.is_number:
            return value.node.pytype(expression)
        if (proxy := self._symbols.get(expression)) is None:  # arithmetic on sizes that C++ did
            before = len(self.graph.nodes)
            try:
                proxy = _torch_compat.build_expression(expression, self._symbols)
            except KeyError as error:
                raise CaptureError(
                    f"{self._where()} depends on the size {expression}, which is no input"
                ) from error
            for node in list(self.graph.nodes)[before:]:
                self._mark(node)
            if not isinstance(proxy, Proxy):
                return proxy
            self._symbols[expression] = proxy
        return proxy.node

    def _where(self) -> str:
        return self.origin.label if self.origin is not None else "the root of the backward"

    def record(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Record a tensor operator that code of the engine ran at capture."""
        leaves: list[Any] = []
        tree_map(leaves.append, (args, kwargs))
        if not self.in_python_node or any(isinstance(v, torch.Tensor) for v in leaves):
            self.refused = CaptureError(
                f"{self._where()} runs {function} at capture, on sizes of that time"
            )
        node = self.call(function, self.lift(tuple(args)), self.lift(dict(kwargs)))
        made = function(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            self.bind(made, node)
        elif isinstance(made, (tuple, list)):
            for i, part in enumerate(made):
                self.bind(part, self.part(node, i))
        return made


class _OperatorRecorder(_torch_compat.TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    def __init__(self, tracer: GraphTracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._tracer.record(func, args, kwargs or {})
