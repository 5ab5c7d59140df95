"""FLOPs and bytes of a launch, by the operation of torch that made it.

Note [Work of an operation]
~~~~~~~~~~~~~~~~~~~~~~~~~~~
An operation reads each of its tensors once and writes once what it returns or changes; memory that
several elements share (an expanded dimension) counts once. What it returns is what it allocated. An
operation that looks up some of its first tensor reads no more of it than it writes. FLOPs are those
of the sizes that cuBLAS was given for a matrix product, and of ``torch.utils.flop_counter``'s
formulas for attention and convolutions; causal attention is half; a grouped product's are those of
all its rows, also of those past its last group. Of recurrent layers, of templates of Inductor's and
of kernels of the user's own they are not known. Of Inductor's other kernels a tensor counts as far
as the kernel's number of elements reaches: it may be a look-up. All of this is at most what a
kernel needs to do, so that times from it are bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

PRODUCT, ATTENTION, CONVOLUTION, OTHER, COPY, SET, COMMUNICATION = (
    "matrix products",
    "attention",
    "convolutions",
    "other kernels",
    "copies to and from the host",
    "copies and fills",
    "communication",
)
KINDS = (PRODUCT, ATTENTION, CONVOLUTION, OTHER, SET, COPY, COMMUNICATION)
"""Kinds of launches, in the order in which tables have them."""

_DTYPES = {0: "float32", 1: "float64", 2: "float16", 3: "int8", 14: "bfloat16", 28: "float8"}
"""cudaDataType of a product's operands; both kinds of float8 run at one speed."""
_SIZES = {"float32": 4, "float64": 8, "float16": 2, "int8": 1, "bfloat16": 2, "float8": 1}

_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "set_")
_NOT_KNOWN = ("_cudnn_rnn", "_scaled_grouped_mm")
"""Operations that compute products in kernels of their own, of which nobody told the sizes."""
_GENERATED = ("poi", "red", "per", "for", "mix", "spl", "unk")
"""Inductor's kinds of kernels that are no templates; a template computes products or attention."""
_LOOKS_UP = ("embedding", "index", "gather", "index_select", "nll_loss", "take", "slice")


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor on a device that an operation was given, with its strides in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that differ in address."""
        of_own = [n for n, s in zip(self.sizes, self.strides, strict=False) if s or n == 0]
        return math.prod(of_own) * self.item_bytes


@dataclass(slots=True)
class Operation:
    """An operation of torch that was running when something was launched.

    Attributes:
        name: ``aten::mm``, or the name of one of Inductor's kernels.
        inputs: tensors on a device; lists are flattened. Others as they are: numbers, flags, None.
        names, writes: of the schema's arguments, by place; empty without a schema.
        allocated: bytes that it allocated itself.
        launches: how many it made.
        event: of the profiler's, as long as its inputs have not been read.
        module: path of the module whose call made it, or its forward; empty if that is not known.
        backward: the profiler's number of the function of the backward that made it; else -1.
        lists: of a convolution, its inputs that are lists of numbers, by place.
    """

    name: str
    inputs: list[Any] = field(default_factory=list)
    names: tuple[str, ...] = ()
    writes: frozenset[str] = frozenset()
    allocated: int = 0
    launches: int = 0
    event: Any = None
    module: str = ""
    backward: int = -1
    lists: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch has to do.

    Attributes:
        kind: one of ``KINDS``.
        flops: multiplications and additions counted apart.
        nbytes: of device memory, read and written; of a copy over the bus, copied; of a collective,
            sent to other ranks.
        dtype: of a product's or of attention's operands.
        shape: of a product (m, n, k); of attention (batch × heads, tokens, head size); of a
            collective over several hosts (GPUs of a host whose network it uses,).
        pattern: which of the kernel table's operators it is like.
        way: of attention ``forward`` or ``backward``; of a copy ``to device`` or ``to host``; of a
            collective ``link`` or ``network``.
        module: as of its operation.
        in_part: whether its FLOPs are not known, and count as none.
    """

    kind: str
    flops: int = 0
    nbytes: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    pattern: str = "pointwise"
    way: str = ""
    module: str = ""
    in_part: bool = False


def of_product(kind: int, m: int, n: int, k: int, batches: int) -> Work:
    """Work of a matrix product of cuBLAS, whose operands have the cudaDataType ``kind``."""
    return product(_DTYPES.get(kind, "float32"), m, n, k, batches)


def product(dtype: str, m: int, n: int, k: int, batches: int) -> Work:
    """Work of a matrix product (m, k) times (k, n), ``batches`` times."""
    nbytes = _SIZES[dtype] * (m * k + k * n + m * n) * batches
    return Work(PRODUCT, 2 * m * n * k * batches, nbytes, dtype, (m * batches, n, k))


def of_operation(operation: Operation, flops_of: Mapping[str, Callable[..., int]]) -> Work:
    """Work of an operation, all its launches together; ``flops_of`` has the formulas by name."""
    base = operation.name.removeprefix("aten::")
    if operation.name.startswith("triton_"):
        return _of_triton(operation)
    read, written = _traffic(operation, base)
    nbytes = read + written
    if base == "_grouped_mm":
        kind = PRODUCT
    elif base in flops_of:
        kind = ATTENTION if "attention" in base else CONVOLUTION
    else:
        in_part = base.startswith(_NOT_KNOWN)
        return Work(OTHER, nbytes=nbytes, pattern=_pattern(base), in_part=in_part)
    tensors = _tensors(operation.inputs)
    dtype = tensors[0].dtype if tensors else "float32"
    try:
        if kind == PRODUCT:
            return _of_grouped(tensors[0], tensors[1], nbytes)
        if kind == CONVOLUTION:
            return Work(kind, _of_convolution(operation), nbytes, dtype)
        return _of_attention(operation, flops_of[base], Work(kind, 0, nbytes, dtype))
    except Exception:
        # An overload that the formula does not know.
        return Work(kind, 0, nbytes, dtype, in_part=True)


def _of_grouped(a: TensorInput, b: TensorInput, nbytes: int) -> Work:
    """Work of products of groups: of (m, k) and (groups, k, n), whose rows are cut into groups, of
    (groups, m, k) and (k, n), whose columns are, of (m, k) and (k, n), whose k is, or of
    (groups, m, k) and (groups, k, n)."""
    m, k = a.sizes[-2:]
    n = b.sizes[-1]
    groups = a.sizes[0] if len(a.sizes) == len(b.sizes) == 3 else 1
    return Work(PRODUCT, 2 * groups * m * n * k, nbytes, a.dtype, (groups * m, n, k))


def _of_attention(operation: Operation, formula: Callable[..., int], work: Work) -> Work:
    """Heads of keys and values that several of the query's share count for each of those: torch's
    formulas refuse them."""
    way = "backward" if "backward" in operation.name else "forward"
    first = 1 if way == "backward" else 0  # after the gradient of the result
    shapes = [i.sizes if isinstance(i, TensorInput) else i for i in operation.inputs]
    query = shapes[first]
    for place in (first + 1, first + 2):
        sizes = shapes[place]
        shapes[place] = (*sizes[:-3], *query[-3:-2], *sizes[-2:])
    flops = _flops(formula, *shapes)
    if _given(operation).get("is_causal") is True:
        flops //= 2
    shape = (math.prod(query[:-2]), query[-2], query[-1])
    return replace(work, flops=flops, shape=shape, way=way)


@functools.lru_cache(maxsize=4096)
def _flops(formula: Callable[..., int], *shapes: Any) -> int:
    """FLOPs by one of torch's formulas, which take half a millisecond."""
    return int(formula(*shapes, out_val=None))


def _of_convolution(operation: Operation) -> int:
    """FLOPs as of ``torch.utils.flop_counter.conv_flop_count``: of a forward, and of each of the
    two gradients, if it is asked for."""
    given = _given(operation)
    weight, image = given["weight"].sizes, given["input"].sizes
    products = 1
    # A transposed one is the gradient of one that made its input.
    if "backward" in operation.name:
        products = sum(given["output_mask"][:2])
        made = image if given["transposed"] else given["grad_output"].sizes
    else:
        made = image if given["transposed"] else _made(given)
    return int(2 * products * made[0] * math.prod(made[2:]) * math.prod(weight))


def _made(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Sizes of what a convolution makes, but for its channels."""
    image, weight = given["input"].sizes, given["weight"].sizes
    made = list(image)
    for place in range(2, len(image)):
        stride, padding, dilation = (
            given[name][min(place - 2, len(given[name]) - 1)]
            for name in ("stride", "padding", "dilation")
        )
        reach = dilation * (weight[place] - 1) + 1
        made[place] = (image[place] + 2 * padding - reach) // stride + 1
    return tuple(made)


def _given(operation: Operation) -> dict[str, Any]:
    return dict(zip(operation.names, operation.inputs, strict=False))


def _traffic(operation: Operation, base: str) -> tuple[int, int]:
    """Bytes read and written."""
    read = written = 0
    overwrites = base in _OVERWRITES
    for place, given in enumerate(operation.inputs):
        tensors = _tensors([given])
        nbytes = sum(t.nbytes for t in tensors)
        name = operation.names[place] if place < len(operation.names) else ""
        # Fused optimizers change gradients only to scale them back.
        if name in operation.writes and name != "grads":
            written += nbytes
            if overwrites or name.startswith("out"):
                continue
        read += nbytes
    written += operation.allocated
    if base.startswith(_LOOKS_UP) and "backward" not in base:
        read = min(read, 2 * written)
    return read, written


def _of_triton(operation: Operation) -> Work:
    """One of Inductor's kernels: its numbers of elements follow its tensors."""
    elements = math.prod(
        n for n in operation.inputs if isinstance(n, int) and not isinstance(n, bool) and n > 0
    )
    nbytes = sum(min(t.nbytes, elements * t.item_bytes) for t in _tensors(operation.inputs))
    pattern = "pointwise" if "_poi_" in operation.name else "reduction"
    in_part = operation.name.split("_")[1] not in _GENERATED
    return Work(OTHER, nbytes=nbytes, pattern=pattern, in_part=in_part)


def _tensors(inputs: Sequence[Any]) -> list[TensorInput]:
    found: list[TensorInput] = []
    for given in inputs:
        if isinstance(given, TensorInput):
            found.append(given)
        elif isinstance(given, list):
            found += _tensors(given)
    return found


def _pattern(base: str) -> str:
    if "softmax" in base:
        return "softmax"
    if base in ("copy_", "_to_copy", "clone", "cat"):
        return "copy"
    if base.startswith(_LOOKS_UP):
        return "embedding"
    if base.startswith(("sum", "mean", "native_layer_norm", "norm", "var", "argmax", "max")):
        return "reduction"
    return "pointwise"
