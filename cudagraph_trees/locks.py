"""The process-wide lock of captures and warm-ups.

Capturing and routing allocations to a pool are states of the process and its device, not
of a thread: a ``synchronize()`` in one thread breaks a capture in another.
"""

from __future__ import annotations

import threading

capture_lock = threading.RLock()
