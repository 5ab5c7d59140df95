"""Print what the installed memprof requires, and one of its extras, torch left out.

    requirements.py [EXTRA]    dev where none is given

For environments whose torch was put there by other means and must stay as it is.
One requirement a line, in the form that `pip install -r` reads.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys

wanted_extra = sys.argv[1] if len(sys.argv) > 1 else "dev"
for requirement in importlib.metadata.requires("torch-memprof") or []:
    wanted, _, marker = requirement.partition(";")
    extra = re.search(r"""extra == ['"](.+?)['"]""", marker)
    if (extra is None or extra[1] == wanted_extra) and not re.match(r"torch\b", wanted):
        sys.stdout.write(f"{wanted.strip()}\n")
