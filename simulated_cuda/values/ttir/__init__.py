"""TTIR, Triton's device-independent representation of a kernel, made into C.

The reading order: `types` (TTIR's types and literals), `view` (what a value is in C), `emitter`
(the C that is written), `translator` (the text that is read, one operation after the other), then
the operations by kind: `elementwise` with `libdevice`, `shapes`, `memory`, `control_flow`; `kernel`
puts them together.

TTIR is read as text, in the form in which MLIR prints it: https://mlir.llvm.org/docs/LangRef; the
operations are those of Triton's dialect (https://triton-lang.org/main/dialects/TritonOps.html) and
of MLIR's own ``arith``, ``math`` and ``scf``.
"""

from __future__ import annotations

from .kernel import to_c
from .types import UnsupportedError
from .writes import written_arguments

__all__ = ["UnsupportedError", "to_c", "written_arguments"]
