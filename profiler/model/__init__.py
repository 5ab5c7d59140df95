"""memprof's data model: plain data, no torch, no I/O."""
# ruff: noqa: F403

from .aot_metadata import *
from .captures import *
from .category import *
from .dataflow import *
from .description import *
from .device import *
from .graph import *
from .held import *
from .ledger import *
from .profile import *
from .program import *
from .provenance import *
from .tracker import *
