# ruff: noqa: E501  (captured graphs have long lines)
"""Captured graphs as they are, after the passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from snapshots import TestCase
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memprof import compiled_autograd as ca
from memprof.testing import fx_text


class TestGraphs(TestCase):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 8, bias=False)
        self.x = torch.randn(3, 4)
        self.w = self.linear.weight

    def assertCaptured(
        self, fn: Callable[[], Any], expected: str, *, dynamic: bool = False
    ) -> None:
        """The graph that ``fn`` captures, as ``fx_text`` writes it."""
        (found,) = ca.capture(fn, dynamic=dynamic)
        self.assertExpectedInline(fx_text(found.graph), expected, skip=1)

    def backward(self) -> None:
        self.linear(self.x).sum().backward()

    def test_linear_relu(self) -> None:
        """All of it; the others leave out what is the same in each."""
        (found,) = ca.capture(lambda: F.relu(self.linear(self.x)).sum().backward())
        self.assertExpectedInline(
            fx_text(found.graph, engine=True),
            """\
validate_outputs = validate_outputs([inputs[0]])
sum_backward0 = SumBackward0([validate_outputs[0]], [True], [3, 8])
validate_outputs_1 = validate_outputs([sum_backward0[0]])
relu_backward0 = ReluBackward0([validate_outputs_1[0]], [True], inputs[1])
validate_outputs_2 = validate_outputs([relu_backward0[0]])
mm_backward0 = MmBackward0([validate_outputs_2[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[2], 0, [3, 4], [])
validate_outputs_3 = validate_outputs([mm_backward0[0], mm_backward0[1]])
tbackward0 = TBackward0([validate_outputs_3[1]], [True])
validate_outputs_4 = validate_outputs([tbackward0[0]])
call_accumulate_grad = take_gradient(inputs[3], validate_outputs_4[0], False)
_exec_final_callbacks_stub = _exec_final_callbacks_stub()
return []""",
        )

    def test_linear_relu_adding_to_a_gradient(self) -> None:
        self.w.grad = torch.zeros_like(self.w)
        self.assertCaptured(
            lambda: F.relu(self.linear(self.x)).sum().backward(),
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
relu_backward0 = ReluBackward0([sum_backward0[0]], [True], inputs[1])
mm_backward0 = MmBackward0([relu_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[2], 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_accumulate_grad = call_accumulate_grad(inputs[3], tbackward0[0], False)""",
        )

    def test_grad(self) -> None:
        self.assertCaptured(
            lambda: torch.autograd.grad(self.linear(self.x).sum(), self.w),
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
mm_backward0 = MmBackward0([sum_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[1], 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
return [tbackward0[0]]""",
        )

    def test_dynamic_sizes(self) -> None:
        self.assertCaptured(
            self.backward,
            """\
unwrap_maybe_dynamic_int = unwrap_maybe_dynamic_int(sizes[0])
unwrap_maybe_dynamic_int_1 = unwrap_maybe_dynamic_int(sizes[1])
unwrap_maybe_dynamic_int_2 = unwrap_maybe_dynamic_int(sizes[2])
unwrap_maybe_dynamic_int_3 = unwrap_maybe_dynamic_int(sizes[3])
unwrap_maybe_dynamic_int_4 = unwrap_maybe_dynamic_int(sizes[4])
unwrap_maybe_dynamic_int_5 = unwrap_maybe_dynamic_int(sizes[5])
unwrap_maybe_dynamic_int_6 = unwrap_maybe_dynamic_int(sizes[6])
unwrap_maybe_dynamic_int_7 = unwrap_maybe_dynamic_int(sizes[7])
unwrap_maybe_dynamic_int_8 = unwrap_maybe_dynamic_int(sizes[8])
unwrap_maybe_dynamic_int_9 = unwrap_maybe_dynamic_int(sizes[9])
unwrap_maybe_dynamic_int_10 = unwrap_maybe_dynamic_int(sizes[10])
unwrap_maybe_dynamic_int_11 = unwrap_maybe_dynamic_int(sizes[11])
unwrap_maybe_dynamic_int_12 = unwrap_maybe_dynamic_int(sizes[12])
unwrap_maybe_dynamic_int_13 = unwrap_maybe_dynamic_int(sizes[13])
sum_backward0 = SumBackward0([inputs[0]], [True], [unwrap_maybe_dynamic_int, unwrap_maybe_dynamic_int_1])
mm_backward0 = MmBackward0([sum_backward0[0]], [False, True], None, 0, [unwrap_maybe_dynamic_int_4, unwrap_maybe_dynamic_int_5], [unwrap_maybe_dynamic_int_6, unwrap_maybe_dynamic_int_7], inputs[1], 0, [unwrap_maybe_dynamic_int_8, unwrap_maybe_dynamic_int_9], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_accumulate_grad = take_gradient(inputs[2], tbackward0[0], False)""",
            dynamic=True,
        )

    def test_aot_module(self) -> None:
        model = nn.Sequential(self.linear, nn.ReLU(), nn.Linear(8, 2, bias=False))
        compiled = torch.compile(model, backend="aot_eager")
        self.assertCaptured(
            lambda: compiled(self.x).sum().backward(),
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 2])
aot_backward_prologue = aot_backward_prologue([inputs[1], inputs[2], inputs[3]], [], [], [sum_backward0[0]])
aot0_t_2 = t.default(aot_backward_prologue[3])
aot0_mm_2 = mm.default(aot0_t_2, aot_backward_prologue[2])
aot0_t_3 = t.default(aot0_mm_2)
aot0_t_1 = t.default(aot_backward_prologue[1])
aot0_t_4 = t.default(aot0_t_1)
aot0_mm_3 = mm.default(aot_backward_prologue[3], aot0_t_4)
aot0_t_5 = t.default(aot0_t_3)
call_accumulate_grad = take_gradient(inputs[2], aot0_t_5, False)
aot0_detach = detach.default(aot_backward_prologue[2])
aot0_detach_1 = detach.default(aot0_detach)
aot0_threshold_backward = threshold_backward.default(aot0_mm_3, aot0_detach_1, 0)
aot0_t_6 = t.default(aot0_threshold_backward)
aot0_mm_4 = mm.default(aot0_t_6, aot_backward_prologue[0])
aot0_t_7 = t.default(aot0_mm_4)
aot0_t_8 = t.default(aot0_t_7)
call_accumulate_grad_1 = take_gradient(inputs[4], aot0_t_8, False)""",
        )

    def test_two_graph_breaks(self) -> None:
        @torch.compile(backend="aot_eager")
        def f(x: Tensor) -> Tensor:
            x = self.linear(x)
            torch._dynamo.graph_break()
            x = x.sin()
            torch._dynamo.graph_break()
            return x.exp()

        self.assertCaptured(
            lambda: f(self.x).sum().backward(),
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
aot_backward_prologue = aot_backward_prologue([inputs[1]], [], [], [sum_backward0[0]])
aot0_mul = mul.Tensor(aot_backward_prologue[1], aot_backward_prologue[0])
aot_backward_prologue_1 = aot_backward_prologue([inputs[2]], [], [], [aot0_mul])
aot1_cos = cos.default(aot_backward_prologue_1[0])
aot1_mul = mul.Tensor(aot_backward_prologue_1[1], aot1_cos)
aot_backward_prologue_2 = aot_backward_prologue([inputs[3]], [], [], [aot1_mul])
aot2_t_1 = t.default(aot_backward_prologue_2[1])
aot2_mm_1 = mm.default(aot2_t_1, aot_backward_prologue_2[0])
aot2_t_2 = t.default(aot2_mm_1)
aot2_t_3 = t.default(aot2_t_2)
call_accumulate_grad = take_gradient(inputs[4], aot2_t_3, False)""",
        )

    def test_tensor_pre_hook(self) -> None:
        self.w.register_hook(lambda g: g * 2)
        self.assertCaptured(
            self.backward,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
mm_backward0 = MmBackward0([sum_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[1], 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_hook = call_hook(hooks[0], tbackward0[0], hook_type=tensor_pre_hook)
call_accumulate_grad = call_accumulate_grad(inputs[2], call_hook, False)""",
        )

    def test_pre_hook_and_post_hook(self) -> None:
        def step() -> None:
            y = self.linear(self.x)
            y.grad_fn.register_prehook(lambda grads: None)
            y.grad_fn.register_hook(lambda ins, outs: None)
            y.sum().backward()

        self.assertCaptured(
            step,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
call_hook = call_hook(hooks[0], [sum_backward0[0]], hook_type=pre_hook)
mm_backward0 = MmBackward0([call_hook[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[1], 0, [3, 4], [])
call_hook_1 = call_hook(hooks[1], [mm_backward0[0], mm_backward0[1]], [call_hook[0]], hook_type=post_hook)
tbackward0 = TBackward0([call_hook_1[1]], [True])
call_accumulate_grad = call_accumulate_grad(inputs[2], tbackward0[0], False)""",
        )

    def test_hooks_of_an_accumulation(self) -> None:
        node = torch.autograd.graph.get_gradient_edge(self.w).node
        node.register_prehook(lambda grads: None)
        node.register_hook(lambda ins, outs: None)
        self.w.register_post_accumulate_grad_hook(lambda p: None)
        self.assertCaptured(
            self.backward,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
mm_backward0 = MmBackward0([sum_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], inputs[1], 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_hook = call_hook(hooks[0], [tbackward0[0]], hook_type=pre_hook)
call_accumulate_grad = call_accumulate_grad(inputs[2], call_hook[0], True)
call_hook_1 = call_hook(hooks[2], inputs[2], hook_type=post_acc_grad_hook)
call_hook_2 = call_hook(hooks[1], [], [call_hook[0]], hook_type=post_hook)""",
        )

    def test_unpack_hook(self) -> None:
        def step() -> None:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                y = self.linear(self.x)
            y.sum().backward()

        self.assertCaptured(
            step,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
call_hook = call_hook(hooks[0], packed_data[0], hook_type=unpack_hook)
mm_backward0 = MmBackward0([sum_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], call_hook, 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_accumulate_grad = take_gradient(inputs[1], tbackward0[0], False)""",
        )

    def test_custom_function(self) -> None:
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                return grad * 2

        self.assertCaptured(
            lambda: Double.apply(self.w).sum().backward(),
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [8, 4])
call_backward = call_backward(hooks[0], [inputs[1]], sum_backward0[0])
call_accumulate_grad = call_accumulate_grad(inputs[1], call_backward[0], False)""",
        )

    def test_copy_slices(self) -> None:
        def step() -> None:
            y = self.w.clone()
            y[0].mul_(3)
            y.sum().backward()

        self.assertCaptured(
            step,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [8, 4])
copy_slices_prologue = copy_slices_prologue([sum_backward0[0]], [8, 4], [4, 1], 0, [4], [1], 0)
mul_backward0 = MulBackward0([copy_slices_prologue[2]], [True, False], inputs[1], 4, None, 6)
copy_slices_epilogue = copy_slices_epilogue([True, False], copy_slices_prologue[0], [mul_backward0[0], mul_backward0[1]], copy_slices_prologue[1])
clone_backward0 = CloneBackward0([copy_slices_epilogue[0]], [True])
call_accumulate_grad = call_accumulate_grad(inputs[2], clone_backward0[0], False)""",
        )

    def test_checkpoint(self) -> None:
        def step() -> None:
            y = checkpoint(lambda x: self.linear(x).sin(), self.x, use_reentrant=False)
            y.sum().backward()

        self.assertCaptured(
            step,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
call_hook = call_hook(hooks[0], packed_data[0], hook_type=unpack_hook)
sin_backward0 = SinBackward0([sum_backward0[0]], [True], call_hook)
call_hook_1 = call_hook(hooks[1], packed_data[1], hook_type=unpack_hook)
mm_backward0 = MmBackward0([sin_backward0[0]], [False, True], None, 0, [4, 8], [1, 4], call_hook_1, 0, [3, 4], [])
tbackward0 = TBackward0([mm_backward0[1]], [True])
call_accumulate_grad = take_gradient(inputs[1], tbackward0[0], False)""",
        )

    def test_reentrant_checkpoint(self) -> None:
        def step() -> None:
            x = self.x.clone().requires_grad_()
            checkpoint(lambda x: self.linear(x).sin(), x, use_reentrant=True).sum().backward()

        self.assertCaptured(
            step,
            """\
sum_backward0 = SumBackward0([inputs[0]], [True], [3, 8])
call_backward = call_backward(hooks[0], [inputs[1]], sum_backward0[0])
call_accumulate_grad = call_accumulate_grad(inputs[1], call_backward[2], False)""",
        )
