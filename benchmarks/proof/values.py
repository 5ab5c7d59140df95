"""Values: whether memprof computes what Inductor computes, on models of many kinds.

Each is run in one process under Inductor, under Inductor again, and under memprof, from the same
bits, and what they leave is compared tensor by tensor. What differs between Inductor and itself (by
sums that atomic additions make in any order, say) is not memprof's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from proof import subjects
from proof.common import Part, Rows, ledger
from proof.subjects import CONTENDERS, GPTS, Compiler, zoo

Values = dict[str, list[Tensor]]
"""What a run left, by kind, on the host."""


def training(
    case: zoo.Case, compiler: Compiler, steps: int = 10, sizes: tuple[int | None, ...] = (None,)
) -> Values:
    """What so many steps of AdamW leave; batches of ``sizes`` take turns, None for the whole."""
    model = case.model.cuda()
    inputs = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in case.inputs.items()}
    forward = compiler(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        n = sizes[i % len(sizes)]
        loss = case.loss(forward(**{k: v[:n] if n else v for k, v in inputs.items()}))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return {
        "losses": losses,
        "gradients": [p.grad.cpu() for p in model.parameters() if p.grad is not None],
        "parameters": [p.detach().cpu() for p in model.parameters()],
        "buffers": [b.cpu() for b in model.buffers()],
    }


def gpt2(compiler: Compiler, simulated: bool) -> Values:
    """GPT-2 124M with dropout, 20 steps in float32."""
    config, batch, tokens = (GPTS["tiny"], 2, 64) if simulated else (GPTS["124M"], 4, 512)
    return training(subjects.gpt(replace(config, dropout=0.1), batch, tokens), compiler, 20)


def two_threads(compiler: Compiler, simulated: bool) -> Values:
    """Two models that train at once, without dropout, since threads draw from one generator."""
    cases = [subjects.of_zoo("mlp", training=False) for _ in range(2)]
    compiler(cases[0].model)  # torch cannot look for a backend in two threads at once
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda case: training(case, compiler), cases)
    return {kind: one[kind] + other[kind] for kind in one}


def generated(compiler: Compiler, simulated: bool) -> Values:
    """Tokens that a Llama of transformers draws one by one, with a static cache, which transformers
    makes in a first call that is not compiled."""
    model: Any = subjects.of_zoo("llama", training=False).model.cuda()
    forward = compiler(model.__call__)
    model.get_compiled_call = lambda config: forward
    found = model.generate(
        torch.randint(512, (2, 8), device="cuda"),
        max_new_tokens=24,
        do_sample=True,
        use_cache=True,
        cache_implementation="static",
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return {"logits": [x.cpu() for x in found.logits], "tokens": [found.sequences.cpu()]}


def compare(
    rows: Rows, run: Callable[[Compiler, bool], Values], dynamic: bool | None = None, **options: Any
) -> None:
    """Run under each contender, memprof with ``options``, and write a row a kind of value."""
    found: dict[str, Values] = {}
    for name in ("inductor", "inductor again", "memprof"):
        how = {**CONTENDERS[name], "options": options} if name == "memprof" else CONTENDERS[name]
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.manual_seed(0)
        found[name] = run(partial(torch.compile, dynamic=dynamic, **how), rows.simulated)
        drawn = [torch.cuda.get_rng_state(), torch.rand(64, device="cuda").cpu()]
        found[name]["random numbers"] = drawn
    for kind, values in found["inductor"].items():
        equal, difference = apart(found["memprof"][kind], values)
        control_equal, control_difference = apart(found["inductor again"][kind], values)
        rows.add(
            kind="values",
            what=kind,
            tensors=len(values),
            equal=equal,
            difference=difference,
            control_equal=control_equal,
            control_difference=control_difference,
        )
    rows.add(kind="graphs", **ledger())


def apart(values: list[Tensor], others: list[Tensor]) -> tuple[int, float]:
    """How many tensors are equal to the last bit, and by how much the others differ at most, in
    units of the largest element of the tensor that is compared with."""
    unequal = [(a, b) for a, b in zip(values, others, strict=True) if not torch.equal(a, b)]
    apart_by = [
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-30))
        for a, b in unequal
    ]
    return len(values) - len(unequal), max(apart_by, default=0.0)


def of(build: Callable[..., zoo.Case], *arguments: str, **settings: Any) -> Callable[..., Values]:
    """A run that trains a model which is small on every device."""
    return lambda compiler, simulated: training(build(*arguments), compiler, **settings)


CASES: dict[str, tuple[Callable[..., Values], dict[str, Any]]] = {
    "GPT-2 124M, dropout": (gpt2, {}),
    "Llama": (of(subjects.of_zoo, "llama"), {}),
    **{name: (of(subjects.of_transformers, name), {}) for name in subjects.TRANSFORMERS},
    "generate, static cache": (generated, {}),
    "ResNet, BatchNorm": (of(subjects.of_zoo, "resnet"), {}),
    "dynamic sizes": (
        of(subjects.of_zoo, "gpt2", steps=16, sizes=(4, 2, 3)),
        {"dynamic": True},
    ),
    "checkpoint": (of(subjects.checkpointed), {}),
    "compiled autograd": (of(subjects.of_zoo, "mlp"), {"compiled_autograd": True}),
    "two threads": (two_threads, {}),
}
PART = Part(
    name="values",
    module="proof.values",
    about="Tensors that training or generation leaves under memprof, beside those under Inductor; "
    "Inductor run a second time is the control. A difference is the largest of any tensor, in "
    "units of that tensor's largest element.",
    cases={name: partial(compare, run=run, **how) for name, (run, how) in CASES.items()},
    values=True,
)
