"""Records of forwards and of captured backwards that are given what they saved."""

from __future__ import annotations

from memprof.profiler.model import (
    Category,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    Role,
)


def forward(id: int, graph_id: int | None = None) -> GraphRecord:
    return GraphRecord(id, GraphKind.FORWARD, f"{id}/0", id if graph_id is None else graph_id)


def captured(id: int, *saved: tuple[int, int], capture: str = "!0", frame: int = 0) -> GraphRecord:
    """A captured backward that is given outputs of forwards, by id of the record."""
    inputs = tuple(
        GraphValue(
            i,
            f"saved_{i}",
            Role.SAVED_FOR_BACKWARD,
            Category.ACTIVATION,
            forward_output=output,
            forward_graph=graph,
        )
        for i, (graph, output) in enumerate(saved)
    )
    return GraphRecord(
        id,
        GraphKind.BACKWARD,
        f"{capture}/{frame}",
        90 + id,
        description=GraphDescription(inputs=inputs),
    )
