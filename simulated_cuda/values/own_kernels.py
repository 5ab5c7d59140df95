"""Operators that the CPU does not have, or has by another name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Random = Callable[[], torch.Generator]
Arguments = Mapping[str, Any]
OwnKernel = Callable[[Random, Arguments, Sequence[Any]], None]
"""Given random numbers, an operator's arguments by name and the tensors that it returned, all of
them on the CPU: writes the results to these tensors."""

_SEEDS = 2**31 - 1


def _attention(
    a: Arguments, qkv: Sequence[torch.Tensor], bias: torch.Tensor | None, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of scaled dot product attention, and the logarithm of each row's sum, as float32.

    Tensors are (batch, heads, length, dimension). With fewer heads of keys and values than of
    queries, each of them serves several queries.
    """
    query, key, value = (x.float() for x in qkv)
    scale = a.get("scale")
    if scale is None:
        scale = query.shape[-1] ** -0.5
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias.float()
    if a.get("is_causal", False):
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1)
    dropped = a.get("dropout_p", 0.0)
    if dropped:
        generator = torch.Generator().manual_seed(seed)
        kept = torch.rand(weights.shape, generator=generator) >= dropped
        weights = weights * kept / (1 - dropped)
    return weights @ value, scores.logsumexp(-1)


def _attention_forward(
    random: Random, a: Arguments, results: Sequence[Any], *, seed_place: int
) -> None:
    """``seed_place``: which result is the seed that the backward is given."""
    seed = random().initial_seed() & _SEEDS
    qkv = [a["query"], a["key"], a["value"]]
    output, log_sum = _attention(a, qkv, a.get("attn_bias"), seed)
    results[0].copy_(output)
    if results[1].numel():  # which may have more rows than there are queries
        results[1][..., : log_sum.shape[-1]].copy_(log_sum)
    if a.get("dropout_p", 0.0):
        results[seed_place].view(-1)[:1].view(torch.int64).fill_(seed)


def _attention_backward(random: Random, a: Arguments, results: Sequence[Any]) -> None:
    qkv = [a[name].detach().float().requires_grad_() for name in ("query", "key", "value")]
    bias = a.get("attn_bias")
    if bias is not None:
        bias = bias.detach().float().requires_grad_()
    with torch.enable_grad():
        has_seed = bool(a.get("dropout_p"))
        seed = int(a["philox_seed"].view(-1)[:1].view(torch.int64)) if has_seed else 0
        output, _ = _attention(a, qkv, bias, seed)
        gradient = a.get("grad_out", a.get("grad_out_"))
        assert gradient is not None
        inputs = qkv if bias is None else [*qkv, bias]
        gradients = torch.autograd.grad(output, inputs, gradient.float())
    for result, computed in zip(results, gradients, strict=False):
        if isinstance(result, torch.Tensor) and result.numel():
            result.copy_(computed)


def _native_dropout(random: Random, a: Arguments, results: Sequence[Any]) -> None:
    x, dropped = a["input"], a["p"]
    output, mask = results
    if a.get("train") is False:
        output.copy_(x)
        mask.fill_(True)
        return
    kept = torch.rand(x.shape, generator=random()) >= dropped
    mask.copy_(kept)
    output.copy_(x * kept / (1 - dropped) if dropped < 1 else torch.zeros_like(x))


OWN_KERNELS: Mapping[str, OwnKernel] = {
    "_scaled_dot_product_efficient_attention": functools.partial(_attention_forward, seed_place=2),
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention": functools.partial(_attention_forward, seed_place=6),
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "native_dropout": _native_dropout,
}
"""Kernels of our own by aten operator."""


def _cudnn_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *_: Any,
    **__: Any,
) -> torch.Tensor:
    no_padding = [0] * len(padding)
    return torch.convolution(x, weight, None, stride, padding, dilation, False, no_padding, groups)


def _depthwise_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    _: Sequence[int],
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """A convolution of as many groups as there are channels."""
    no_padding = [0] * len(padding)
    return torch.convolution(
        x, weight, bias, stride, padding, dilation, False, no_padding, x.shape[1]
    )


def _rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    normalized: Sequence[int],
    reciprocal: torch.Tensor,
    weight: torch.Tensor | None,
    _: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of a root mean square normalization's input and weight.

    ``reciprocal`` is of the root mean square of each row, as the forward returns it.
    """
    axes = list(range(-len(normalized), 0))
    gradient, normal = gradient.float(), x.float() * reciprocal
    scaled = gradient if weight is None else gradient * weight.float()
    of_x = reciprocal * (scaled - normal * (scaled * normal).mean(axes, keepdim=True))
    of_weight = (gradient * normal).reshape(-1, *normalized).sum(0)
    return of_x, of_weight


def _product(function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """A matrix product whose last argument is the dtype of its result, in which it is summed."""
    *tensors, dtype = args
    return function(*(tensor.to(dtype) for tensor in tensors), **kwargs)


REPLACEMENTS: Mapping[str, Callable[..., Any]] = {
    "_conv_depthwise2d": _depthwise_convolution,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "addmm.dtype": functools.partial(_product, torch.addmm),
    "baddbmm.dtype": functools.partial(_product, torch.baddbmm),
    "bmm.dtype": functools.partial(_product, torch.bmm),
    "conv_depthwise3d": _depthwise_convolution,
    "cudnn_convolution": _cudnn_convolution,
    "mm.dtype": functools.partial(_product, torch.mm),
}
"""Functions that compute the same on the CPU, by aten operator."""
