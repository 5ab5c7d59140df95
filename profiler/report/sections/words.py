"""What the words of reports mean, said where somebody meets them first."""

from __future__ import annotations

from ...model import Category
from ..columns import Column
from ..section import EVERY, Section, Table

MEANING = {
    Category.PARAMETER: "parameters and buffers of modules",
    Category.OPTIMIZER_STATE: "what an optimizer keeps from step to step",
    Category.GRADIENT: "gradients of parameters",
    Category.ACTIVATION: "kept by a forward for its backward",
    Category.TEMPORARY: "made and let go of inside one call",
    Category.INPUT: "what the program hands in",
    Category.OUTPUT: "what the program gets back",
    Category.AUTOGRAD_DETAIL: "gradients of outputs, random-number state",
    Category.CONSTANT: "baked into the code",
    Category.UNKNOWN: "nobody knows what for",
}
"""What each category is, in a few words."""

_WORDS = (
    ("0/0 forward", "graph 0 of the function that Dynamo compiled first (0), compiled first (/0)"),
    ("call", "one run of such a graph; calls are numbered in the order in which they returned"),
    ("program", "what a call allocates and frees, one for each combination of sizes"),
    ("observed", "watched allocation by allocation, once a program; later calls are not slowed"),
    ("instant", "a place in a program, between two of its allocations and frees"),
    ("storage", "memory of one tensor and of all views of it, counted once"),
    ("live", "allocated and not freed yet"),
    (
        "reserved",
        "what torch's allocator has from the device; nvidia-smi adds CUDA's own",
    ),
    ("attributed", "known whose it is; what is not known is always a row of its own"),
    ("tangent", "the gradient of an output, with which a compiled backward begins"),
    ("pool", "memory that CUDA graphs, or the CPU's arena, have for themselves"),
    ("recorded again", "a CUDA graph of the same sizes was there, and did not fit"),
)


def words() -> Section:
    """A line for each word."""
    table = Table((Column(""), Column("", fold=True)), _WORDS, lines=True, least=EVERY)
    return Section("words", "Words", tables=(table,), detail=True, name="words")
