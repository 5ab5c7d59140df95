"""Everything private of torch that the data-flow profile touches.

Tried with torch 2.11 to 2.15, which agree in all of it.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch._C import _profiler as _kineto
from torch.profiler._memory_profiler import Action, SchemaMatcher, TensorKey, _Storage

TorchOp: Any = _kineto._ExtraFields_TorchOp
Allocation: Any = _kineto._ExtraFields_Allocation
PyCall: Any = _kineto._ExtraFields_PyCall
PyCCall: Any = _kineto._ExtraFields_PyCCall
TensorMetadata: Any = _kineto._TensorMetadata
BACKWARD_FUNCTION: Any = _kineto.RecordScope.BACKWARD_FUNCTION

PREEXISTING: int = Action.PREEXISTING.value
"""A change of a storage that was there before the profiler started."""
CREATE: int = Action.CREATE.value
INCREMENT_VERSION: int = Action.INCREMENT_VERSION.value
DESTROY: int = Action.DESTROY.value

ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"
"""Name of the autograd node that writes ``.grad``."""
ACCUMULATE_GRAD_OPS = frozenset({"aten::detach", "aten::add_"})
"""First operators of AccumulateGrad: take the new gradient as it is, or add to the old one."""

MODULE_PREFIX = "nn.Module: "
"""Start of the name of a Python call that torch's tracer knows to be a module's."""
OPTIMIZER_FUNCTION = "_optimizer_step_code"
"""The function of ``torch.optim.Optimizer`` whose call carries the optimizer's tensors."""
OPTIMIZER_STEP_PREFIX = "Optimizer.step#"
ENGINE_PREFIX = "autograd::engine::evaluate_function: "
"""Range that the autograd engine opens around each node."""
COMPILED_FUNCTION = "CompiledFunction"
"""AOTAutograd's autograd function; the backward's name adds ``Backward``."""
COMPILED_CALL_PREFIX = "## Call CompiledFxGraph "
"""Range that ``CompiledFxGraph.__call__`` opens around the generated code."""

COMPILER_FRAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("torch/_dynamo/convert_frame.py(", ()),
    ("torch/_dynamo/metrics_context.py(", ()),  # what a compilation took, logged at its end
    ("torch/_inductor/compile_fx.py(", ()),
    ("torch/_inductor/async_compile.py(", ()),
    ("torch/_functorch/aot_autograd.py(", ("aot_module_simplified",)),
    ("torch/_functorch/_aot_autograd/runtime_wrappers.py(", ("get_or_compile",)),
    ("torch/fx/graph_module.py(", ("__deepcopy__", "recompile")),
    ("torch/fx/graph.py(", ()),
    # memprof's own work around the first calls of a graph.
    ("compile_backend/inner_compile.py(", ()),
    ("compile_backend/stages/observe/recorder.py(", ("instrument",)),
    ("compile_backend/stages/observe/program_builder.py(", ()),
    ("compile_backend/stages/observe/stage.py(", ("_keep",)),
)
"""Files (and functions; none means all) below which only the compiler runs."""


def kineto_result(result: Any) -> Any:
    """The ``_ProfilerResult`` of a finished profiler run.

    ``result`` is a ``torch.profiler.profile``, a ``torch.autograd.profiler.profile`` or
    the ``_ProfilerResult`` inside them.

    Raises:
        TypeError: it is none of them.
        ValueError: the profiler has not stopped, so there is no result yet.
    """
    given = type(result).__name__
    for attribute in ("profiler", "kineto_results"):
        result = getattr(result, attribute, result)
        if result is None:
            raise ValueError(
                f"this {given} holds no result yet: leave its `with` block (or call stop()) first. "
                "One with a schedule has a result once its active steps were reached"
            )
    if not hasattr(result, "experimental_event_tree"):
        raise TypeError(
            f"an object of type {given} is not a profiler result: "
            "give a torch.profiler.profile that has stopped"
        )
    return result


def missing_options(prof: Any) -> list[str]:
    """Options of ``torch.profiler.profile`` that memory analysis needs and ``prof`` lacks."""
    needed = ("record_shapes", "profile_memory", "with_stack")
    return [f"{name}=True" for name in needed if not getattr(prof, name, True)]


_GENERATED = re.compile(r"(?:^|/)c[a-z0-9]{20,}\.py\(\d+\): call$")


def is_generated_code(name: str) -> bool:
    """Tells whether a Python call's name is that of ``call`` in a module that Inductor wrote."""
    return _GENERATED.search(name) is not None


def registered_schemas(name: str) -> tuple[Any, ...]:
    """``torch.FunctionSchema`` of every overload of operator ``name``; () if there is none."""
    return SchemaMatcher.lookup_schemas(name) or ()


_TENSOR = TensorKey(torch.device("cpu"), 0, _Storage(0, 0))


def accepts(schema_type: Any, observed: type | None) -> bool:
    """Tells whether an argument of a JIT type can have been recorded as ``observed``:
    ``TensorMetadata`` for a tensor, ``list`` for a list of tensors, a Python scalar type, or None
    for what the profiler does not record."""
    example = _TENSOR if observed is TensorMetadata else observed and observed()
    return SchemaMatcher._types_match(example, schema_type)


def is_compiler_frame(name: str) -> bool:
    """Tells whether a Python call's name, ``file(line): function``, is an entry into the
    compiler.
    """
    for start, functions in COMPILER_FRAMES:
        if start in name:
            return not functions or name.rpartition(": ")[2] in functions
    return False
