"""``memprof.profile(on_oom=PATH)``: the report of the moment at which a device has no more memory.

Note [One file, the last failure]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The file is written anew for each report, whole or not at all, so that it has the failure that came
last: the one that ends a program is the last one. What failed before is counted in it, and in the
log with its line.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from memprof.compile_backend.bridge import report_out_of_memory
from memprof.compile_backend.runtime import RUNTIME, Session
from memprof.profiler.device.out_of_memory import REPORTS
from memprof.profiler.errors import ProfileNotWritableError
from memprof.profiler.file import check_name, write_profile
from memprof.profiler.model import DeviceAccount


def check_place(path: str) -> None:
    """Find out that a report cannot be written to ``path`` before there is one.

    Raises:
        ProfileNotWritableError: no such file can be written.
    """
    check_name(path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise ProfileNotWritableError(path, "its folder is not there, or nothing can be put there")


def write_to(path: str, session: Session) -> Callable[[], None]:
    """Write the report of each failure to ``path`` from now on; what is returned ends that.

    Args:
        path: a profile file.
        session: whose compiled calls are part of the report.
    """
    process = os.getpid()

    def write(account: DeviceAccount) -> str:
        if os.getpid() != process:
            return ""
        profile = RUNTIME.profile(session)
        profile.accounts = [account]
        write_profile(profile, path)
        return path

    report_out_of_memory()
    return REPORTS.keep_with(write)
