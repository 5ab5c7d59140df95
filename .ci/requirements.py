"""Print what the installed memprof requires for development, torch left out.

For environments whose torch was put there by other means and must stay as it is.
One requirement a line, in the form that `pip install -r` reads.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys

for requirement in importlib.metadata.requires("memprof") or []:
    wanted, _, marker = requirement.partition(";")
    extra = re.search(r"""extra == ['"](.+?)['"]""", marker)
    if (extra is None or extra[1] == "dev") and not re.match(r"torch\b", wanted):
        sys.stdout.write(f"{wanted.strip()}\n")
