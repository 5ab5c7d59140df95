"""Running one backward in the normal engine and captured, and comparing."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from memprof import compiled_autograd as ca

COMPILERS: dict[str, Callable[..., Any]] = {
    "as_it_is": lambda graph: graph,
    "aot_eager": functools.partial(torch.compile, backend="aot_eager"),
}


@contextlib.contextmanager
def captures() -> Iterator[list[ca.CapturedBackward]]:
    """Collects what is captured inside."""
    found: list[ca.CapturedBackward] = []
    listener = ca.Listener(captured=found.append, ran=lambda capture, hit: None)
    log = ca.AutogradCompilerInstance.log
    log.listeners.append(listener)
    try:
        yield found
    finally:
        log.listeners.remove(listener)


def parameters_of(model: torch.nn.Module) -> list[Tensor]:
    return list(model.parameters())


def clear(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def gradients(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in parameters]


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Bit for bit."""
    return len(a) == len(b) and all(
        (x is None and y is None) or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


def check(
    step: Callable[[], Any],
    parameters: Sequence[Tensor],
    *,
    expect: int = 1,
    runs: int = 2,
    dynamic: bool = False,
    compilers: Sequence[str] = ("as_it_is", "aot_eager"),
) -> None:
    """``step`` in the normal engine and ``runs`` times captured gives the same bits.

    Args:
        step: runs forward and backward; what it returns is compared as well.
        expect: number of captures for all runs together.
    """
    clear(parameters)
    wanted_value = step()
    wanted = gradients(parameters)
    for name in compilers:
        torch._dynamo.reset()
        ca.reset()
        with captures() as found, ca.enable(COMPILERS[name], dynamic=dynamic):
            for run in range(runs):
                clear(parameters)
                value = step()
                assert same(gradients(parameters), wanted), (name, run)
                if isinstance(wanted_value, (tuple, list)):
                    assert same(value, wanted_value), (name, run)
                else:
                    assert value is None or value == wanted_value, (name, run)
        assert len(found) == expect, [c.reason for c in found]
    clear(parameters)


def peak_of(graph: Any, arguments: tuple[Any, ...], parameters: list[Tensor]) -> int:
    """Most bytes live while ``graph`` runs, parameters not counted, gradients counted.

    Values are dropped after their last use and so are lifted inputs, as a compiled graph
    does. A node's inputs and outputs are live together.
    """
    last: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        for argument in node.all_input_nodes:
            last[argument] = node
    held = {p.untyped_storage()._cdata for p in parameters}
    env: dict[Any, Any] = {}
    pending = iter(arguments)
    peak = 0
    inputs = arguments[0]
    left = {
        u.args[1]: u for u in next(iter(graph.graph.nodes)).users if u.target is operator.getitem
    }
    for node in graph.graph.nodes:
        load = functools.partial(torch.fx.node.map_arg, fn=env.__getitem__)
        if node.op == "placeholder":
            env[node] = next(pending)
            continue
        if node.op == "output":
            break
        if node.op == "get_attr":
            env[node] = operator.attrgetter(node.target)(graph)
        else:
            env[node] = node.target(*load(node.args), **load(node.kwargs))
        live: dict[int, int] = {}
        values = [v for n, v in env.items() if n.op != "placeholder"]
        unread = [t for i, t in enumerate(inputs) if i in left and left[i] not in env]
        grads = [p.grad for p in parameters]
        for leaf in tree_leaves((values, unread, grads)):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in held:
                    live[storage._cdata] = storage.nbytes()
        peak = max(peak, sum(live.values()))
        for argument in (*node.all_input_nodes, node):
            if last.get(argument, argument) in (node, argument) and argument.op != "placeholder":
                env.pop(argument, None)
                if argument in left.values():
                    left = {i: n for i, n in left.items() if n is not argument}
    return peak
