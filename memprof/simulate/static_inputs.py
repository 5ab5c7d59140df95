"""Some inputs of compiled code are said to stay where they are, as their program could say."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class StaticInputs:
    """Does to graphs of Dynamo what ``torch._dynamo.mark_static_address(guard=False)`` would.

    AOTAutograd reads it off their placeholders, whoever the backend is. An input that moves after
    all is seen by graph trees, which then record again.

    Args:
        names: ``NAME+NAME``, each ``GraphValue.fqn`` of an input: a qualified name of module or
            optimizer, else Dynamo's source, such as ``L['cache']``. Every graph that has one of
            that name is meant.
        said: is told what was marked so far, in words.
    """

    def __init__(self, names: str, said: Callable[[str], None]) -> None:
        self._names = frozenset(names.split("+"))
        self._said = said
        self._marked = 0

    def install(self, output_graph: ModuleType) -> None:
        """Mark in what is compiled from now on."""
        compile_ = output_graph.OutputGraph.call_user_compiler

        def marked(graph: Any, gm: Any, example_inputs: Any) -> Any:
            self._mark(gm, example_inputs)
            return compile_(graph, gm, example_inputs)

        output_graph.OutputGraph.call_user_compiler = marked

    def _mark(self, gm: Any, example_inputs: Any) -> None:
        from memprof.compile_backend.roles.dynamo_input import dynamo_inputs

        meant = {
            v.name for v in dynamo_inputs(gm, example_inputs) if (v.fqn or v.source) in self._names
        }
        for node in gm.graph.find_nodes(op="placeholder"):
            facts = node.meta.setdefault("tensor_dict", {})
            if node.name in meant and not facts.get("_dynamo_static_input_type"):
                facts["_dynamo_static_input_type"] = "unguarded"
                self._marked += 1
                self._said(f"inputs of compiled graphs: {self._marked:,}")
