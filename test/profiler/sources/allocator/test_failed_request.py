"""Why a request did not fit, from the allocator's books as data; and who holds tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from memprof.profiler.model import (
    Category,
    DeviceAccount,
    WhyNot,
)
from memprof.profiler.sources.allocator.failed_request import explain_failure
from memprof.profiler.sources.allocator.holders import Holders
from memprof.profiler.sources.allocator.variables import variables
from memprof.profiler.views.report.failure import why
from memprof.profiler.views.report.format import format_bytes

MIB = 1 << 20
GIB = 1 << 30


def segment(*blocks: tuple[str, int], pool: tuple[int, int] = (0, 0), stream: int = 0) -> Any:
    """A segment of the large kind; a block's state may be shortened."""
    states = {"used": "active_allocated", "free": "inactive", "waits": "active_awaiting_free"}
    found = [{"state": states[state], "size": n * MIB} for state, n in blocks]
    return {
        "total_size": sum(n for _, n in blocks) * MIB,
        "segment_pool_id": pool,
        "segment_type": "large",
        "stream": stream,
        "blocks": found,
    }


def request(wanted: int, free: int = 10, allowed: int = 4096, **more: Any) -> dict[str, Any]:
    of_device = {"device_total": 4 * GIB, "device_free": free * MIB}
    return {"wanted": wanted * MIB, "allowed": allowed * MIB, **of_device, **more}


@pytest.mark.parametrize(
    ("asked", "segments", "why"),
    [
        (request(5000), [], WhyNot.TOO_LARGE),
        (request(600, allowed=512), [], WhyNot.TOO_LARGE),
        (request(64), [segment(("used", 3000), ("free", 40)), segment(("free", 30))], "pieces"),
        (request(64), [segment(("used", 3000)), segment(("free", 60), stream=7)], WhyNot.STREAMS),
        (request(64), [segment(("used", 3000), ("waits", 60))], WhyNot.STREAMS),
        (request(64), [segment(("used", 3000)), segment(("free", 60), pool=(0, 1))], WhyNot.POOLS),
        (request(64, pool=None), [segment(("used", 3000), ("free", 60))], WhyNot.POOLS),
        (request(64, pool=(0, 1)), [segment(("used", 3000), ("free", 60))], WhyNot.POOLS),
        (
            request(64, free=2000, allowed=1024),
            [segment(("used", 1000), ("free", 10))],
            WhyNot.LIMIT,
        ),
        (request(64), [segment(("used", 2000))], WhyNot.OUTSIDE),
        (request(64), [segment(("used", 3900))], WhyNot.FULL),
    ],
)
def test_reasons(asked: dict[str, Any], segments: list[Any], why: WhyNot) -> None:
    found = explain_failure(segments, **asked)
    assert found.why == why
    # Everything of the device is in one of these.
    reserved = sum(s["total_size"] for s in segments)
    used = sum(b["size"] for s in segments for b in s["blocks"] if b["state"][:8] == "active_a")
    used -= sum(b["size"] for s in segments for b in s["blocks"] if "await" in b["state"])
    assert used + found.free + found.free_of_streams + found.free_of_pools == reserved
    assert reserved + found.device_free + found.outside == 4 * GIB


def test_pieces_of_the_other_kind_are_of_no_use() -> None:
    small = segment(("used", 1), ("free", 1)) | {"segment_type": "small"}
    found = explain_failure([small, segment(("used", 50), ("free", 20))], **request(64))
    assert (found.free, found.largest_free) == (21 * MIB, 20 * MIB)
    found = explain_failure([small, segment(("used", 50), ("free", 20))], **request(2))
    assert (found.free, found.largest_free) == (21 * MIB, MIB)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        # 3,000 MiB on the device, of which the limit of 1,024 leaves 24 beside 1,000 reserved.
        (
            request(64, free=3000, allowed=1024),
            "60.0 MiB are free inside of segments and 24.0 MiB under the limit of 1.00 GiB",
        ),
        (request(100, free=3000, allowed=1024), "of which 24.0 MiB are left; the device has 2.93"),
    ],
)
def test_under_a_limit_it_is_said_what_the_limit_leaves(asked: dict[str, Any], says: str) -> None:
    failure = explain_failure([segment(("used", 940), ("free", 60))], **asked)
    account = DeviceAccount("cuda:0", total=4 * GIB, reserved=1000 * MIB, failure=failure)
    assert says in why(account, failure, format_bytes)


kept: list[Any] = []


class Owner:
    """Something with attributes."""

    inner: Any = None


@pytest.fixture
def tensor() -> Iterator[torch.Tensor]:
    yield torch.ones(1)
    kept.clear()


class TestVariables:
    def test_containers_and_attributes(self, tensor: torch.Tensor) -> None:
        kept.append({"a": Owner()})
        kept[0]["a"].inner = (1, [tensor.clone()])
        name = variables()[id(kept[0]["a"].inner[1][0])]
        assert name == "kept[...][...].inner[...][...], global of test_failed_request.py"

    def test_a_gradient(self) -> None:
        w = torch.ones(1, requires_grad=True)
        w.sum().backward()
        assert variables()[id(w.grad)].startswith(
            "w.grad, local of test_a_gradient (test_failed_request"
        )

    def test_the_innermost_function_goes_first(self, tensor: torch.Tensor) -> None:
        def inner(mine: torch.Tensor) -> str:
            return variables()[id(mine)]

        assert inner(tensor).startswith("mine, local of inner (test_failed_request.py:")

    def test_what_no_variable_leads_to(self) -> None:
        def made() -> Any:
            inside = torch.ones(1)
            return lambda: inside

        kept.append(made())
        key = id(kept[0].__closure__[0].cell_contents)
        assert key not in variables()

    def test_nothing_is_kept_by_asking(self) -> None:
        mine = torch.ones(1)
        there = weakref.ref(mine)
        variables()
        Holders("cpu")
        del mine
        assert there() is None

    def test_a_program_s_own_locals_stay(self, tensor: torch.Tensor) -> None:
        mine = locals()
        variables()
        assert mine["tensor"] is tensor

    def test_an_exception_of_an_object_s_own_does_not_stop_the_search(
        self, tensor: torch.Tensor
    ) -> None:
        class Hostile:
            def __getattribute__(self, name: str) -> Any:
                raise RuntimeError(name)

            def __eq__(self, other: object) -> bool:
                raise RuntimeError("eq")

            __hash__ = object.__hash__

        kept.append({Hostile(): Hostile()})
        held = tensor.clone()
        object.__setattr__(next(iter(kept[0].values())), "inner", held)
        key = id(held)
        del held
        assert variables()[key].startswith("kept[...][...].inner, global of")


class TestHolders:
    def test_who_holds_what(self) -> None:
        w = torch.randn(64, 64, requires_grad=True)
        losses = [(w @ w).sigmoid().sum() for _ in range(2)]
        view = torch.randn(100, 1000)[:, -1]
        by_address = Holders("cpu").held
        saved = losses[0].grad_fn.next_functions[0][0]._raw_saved_result.data  # type: ignore[union-attr]
        held = by_address[saved.data_ptr()]
        assert held.category is Category.ACTIVATION
        assert held.what.startswith("saved by SigmoidBackward0, graph of losses[...], local of ")
        held = by_address[view.untyped_storage().data_ptr()]
        assert (held.category, held.what.split(",")[0]) == (Category.TENSOR, "view")

    def test_hooks_are_not_run(self) -> None:
        def unpack(x: Any) -> Any:
            raise AssertionError("unpacked")

        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
            y = torch.randn(64, 64, requires_grad=True).sigmoid()
        packed = y.grad_fn._raw_saved_result.data  # type: ignore[union-attr]
        held = Holders("cpu").held[packed.data_ptr()]
        assert held.operation == "SigmoidBackward0"
