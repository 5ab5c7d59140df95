"""A test case for inline snapshots of text."""

from __future__ import annotations

import expecttest


class TestCase(expecttest.TestCase):
    """``unittest.TestCase`` with snapshots.

    Run the tests with ``EXPECTTEST_ACCEPT=1`` to have a snapshot that no longer matches
    rewritten in the test's source; read the difference before you commit it.
    """
