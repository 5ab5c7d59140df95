"""A test case for inline snapshots of graphs and allocation programs."""

from __future__ import annotations

import expecttest
import torch
from torch.fx import GraphModule

from memprof.profiler.model import AllocationProgram, GraphRecord

from .graphs import graph_text
from .programs import program_text


class TestCase(expecttest.TestCase):
    """``unittest.TestCase`` with snapshots, on a Dynamo that remembers nothing.

    Run the tests with ``EXPECTTEST_ACCEPT=1`` to have a snapshot that no longer matches
    rewritten in the test's source; read the difference before you commit it.
    """

    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()

    def assertGraph(self, gm: GraphModule, expect: str) -> None:
        """``graph_text(gm)`` is ``expect``, a string literal in the caller's source.

        Raises:
            AssertionError: it is not, and ``EXPECTTEST_ACCEPT`` is not set.
        """
        # skip=1: the literal to rewrite stands one frame further out.
        self.assertExpectedInline(graph_text(gm), expect, skip=1)

    def assertProgram(
        self,
        program: AllocationProgram | GraphRecord,
        expect: str,
        *,
        internal: bool = False,
    ) -> None:
        """``program_text(program)`` is ``expect``, a string literal in the caller's source.

        Raises:
            AssertionError: it is not, and ``EXPECTTEST_ACCEPT`` is not set.
        """
        self.assertExpectedInline(program_text(program, internal=internal), expect, skip=1)
