"""Look at the graph of a backward, without running a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from .compiler import AutogradCompilerInstance
from .engine import enable
from .errors import CaptureError
from .events import Capture, Listener
from .memory import NodeMemory, node_memory
from .node_meta import LIFTED_FROM, NodeOrigin, forward_frames, forward_module, origin_of


@dataclass(frozen=True, slots=True)
class CapturedBackward:
    """One captured backward.

    Attributes:
        graph: the captured graph after the passes; it takes the five lists of
            ``tracer.PLACEHOLDERS``.
        reason: why it was captured.
        capture_ns: how long the capture took, nanoseconds.
        memory: estimated bytes, node by node in graph order (Note [The estimate]).
    """

    graph: GraphModule
    reason: str
    capture_ns: int
    memory: tuple[NodeMemory, ...]

    @property
    def origins(self) -> dict[str, NodeOrigin]:
        """Node name -> the autograd node that it belongs to; of what was lifted out of the
        autograd graph only with ``TORCH_LOGS=compiled_autograd_verbose``."""
        found = {n.name: n.meta.get(LIFTED_FROM, origin_of(n)) for n in self.graph.graph.nodes}
        return {name: origin for name, origin in found.items() if origin is not None}

    @property
    def peak(self) -> NodeMemory:
        """The first node at which estimated live bytes are highest.

        Raises:
            ValueError: the graph is empty.
        """
        if not self.memory:
            raise ValueError("the captured graph has no nodes, so it has no peak")
        return max(self.memory, key=lambda m: m.live)

    @property
    def text(self) -> str:
        """The graph for reading: a line a node, with its bytes and where it comes from.

        Columns: bytes live while the node runs, bytes that it allocates (``?`` where the
        size is unknown), the node, and its autograd node or forward source line.
        """
        known = {m.node: m for m in self.memory}
        lines = [f"{'live':>12} {'allocated':>12}  node"]
        for node in self.graph.graph.nodes:
            if (memory := known.get(node.name)) is None:
                continue
            allocated = f"{memory.allocated:,}" if memory.known else "?"
            lines.append(f"{memory.live:>12,} {allocated:>12}  {_expression(node)}{_where(node)}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


def capture(fn: Callable[[], Any], *, dynamic: bool = False) -> list[CapturedBackward]:
    """Run ``fn`` and return the graph of every backward that it runs, in order of capture.

    The graphs run as they are, so gradients are computed as usual; nothing is compiled.
    Graphs captured earlier are not reused, later ones do not reuse these.

    Args:
        fn: calls ``backward()`` or ``grad()``, e.g. ``lambda: model(x).sum().backward()``.
        dynamic: as for ``enable``.

    Raises:
        CaptureError: a backward cannot be captured, or ``fn`` ran none.
    """
    found: list[Capture] = []
    listener = Listener(captured=found.append, ran=lambda capture, hit: None)
    log = AutogradCompilerInstance.log
    log.listeners.append(listener)
    try:
        with enable(lambda graph: graph, dynamic=dynamic):
            fn()
    finally:
        log.listeners.remove(listener)
    if not found:
        raise CaptureError(
            "fn ran no backward that is captured: none at all, or with create_graph=True, inside "
            "disable(), or under the stance force_eager"
        )
    return [
        CapturedBackward(c.graph, c.reason, c.capture_ns, tuple(node_memory(c.graph.graph)))
        for c in found
    ]


def _expression(node: Any) -> str:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    if node.op == "output":
        return f"return {node.args[0]}"
    if target == "getitem":
        return f"{node.name} = {node.args[0]}[{node.args[1]}]"
    arguments = ", ".join(map(str, node.all_input_nodes))
    return f"{node.name} = {target}({arguments})"


def _where(node: Any) -> str:
    origin = node.meta.get(LIFTED_FROM, origin_of(node))
    if origin is None:
        return ""
    frames, module = forward_frames(node), forward_module(node)
    forward = f", forward {frames[-1].location}" if frames else ""
    return f"  # {origin.label}{forward}{f' in {module[0]}' if module and module[0] else ''}"
