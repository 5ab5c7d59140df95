"""memprof's data model: plain data, no torch, no I/O."""
# ruff: noqa: F403

from .captures import *
from .category import *
from .dataflow import *
from .device import *
from .graph import *
from .held import *
from .ledger import *
from .profile import *
from .program import *
from .provenance import *
from .tracker import *
