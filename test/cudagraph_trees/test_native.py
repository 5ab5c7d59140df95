"""What is done in C++: as its oracles in Python do, and the library's way into a cache."""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.replay import liveness, native
from memprof.cudagraph_trees.replay.inputs import same_addresses
from memprof.cudagraph_trees.replay.liveness import StorageWeakRefWrapper
from memprof.cudagraph_trees.replay.outputs import marked, replaced


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of libraries."""
    monkeypatch.setenv("MEMPROF_CACHE", str(tmp_path))
    monkeypatch.delenv("MEMPROF_NATIVE", raising=False)
    _forget()
    yield tmp_path / "memprof" / "native"
    _forget()


def _forget() -> None:
    native.library.cache_clear()
    native._loaded.cache_clear()


def _compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_compiler_that_fails_is_asked_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setenv(
        "CXX", _compiler(tmp_path, f"echo x >>{asked}; echo 'no such header' >&2; exit 1")
    )
    with pytest.raises(RuntimeError, match=r"it failed; to try again, delete .*\.log"):
        native.build()
    assert "no such header" in next(cache.glob("*.log")).read_text()
    assert native.load() is None
    with pytest.raises(RuntimeError):
        native.build()
    assert asked.read_text() == "x\n"
    assert [p.suffix for p in cache.iterdir()] == [".log"]


def test_nobody_waits_and_nobody_builds_twice(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    monkeypatch.setenv("CXX", _compiler(tmp_path, f"cat {go} >/dev/null; exit 1"))
    assert native.load() is None
    assert native.state() == "it is being built"
    assert native.load() is None
    go.write_text("")  # one reader: a second would still wait
    while native.state() == "it is being built":
        time.sleep(0.01)
    assert native.state().startswith("it failed")


def test_a_build_that_was_abandoned_is_begun_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "echo second >&2; exit 1"))
    lock = native.library().with_suffix(".building")
    cache.mkdir(parents=True)
    lock.touch()
    assert native.load() is None
    assert native.state() == "it is being built"
    os.utime(lock, (1, 1))
    with pytest.raises(RuntimeError, match="it failed"):
        native.build()


@pytest.mark.parametrize("missing", ["compiler", "switch"])
def test_without_it_torch_compares(
    missing: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "compiler":
        monkeypatch.setenv("CXX", "/nowhere/c++")
        assert native.state() == "there is no compiler /nowhere/c++"
    else:
        monkeypatch.setenv("MEMPROF_NATIVE", "0")
        assert native.state() == "switched off by MEMPROF_NATIVE=0"
    assert native.load() is None
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_is_no_error(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memprof").write_text("a file")
    assert native.load() is None
    assert native.state()
    with pytest.raises(RuntimeError, match="no native code"):
        native.build()


@pytest.mark.parametrize(
    "content",
    [b"", b"no library", b"\x7fELF\x02\x01\x01 of another machine"],
    ids=["empty", "text", "other"],
)
def test_what_cannot_be_loaded_is_built_anew(
    content: bytes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", _compiler(tmp_path, "exit 1"))
    cache.mkdir(parents=True)
    native.library().write_bytes(content)
    assert native.load() is None
    assert not native.library().exists()
    assert native.load() is None  # it begins to build
    with pytest.raises(RuntimeError, match="it failed"):
        native.build()


def test_a_compiler_may_be_a_command_or_have_spaces(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    path = _compiler(folder, "exit 1")
    for given, found in ((path, (path,)), ("env -u X c++", ("env", "-u", "X", "c++"))):
        monkeypatch.setenv("CXX", given)
        assert native._compiler() == found


@pytest.mark.simgpu
def test_it_says_what_torch_says() -> None:
    random_ = random.Random(0)
    native.build()
    pool = [torch.ones(n, device=d) for n in (0, 1, 5) for d in ("cpu", "cuda")]
    pool += [torch.nn.Parameter(t.clone()) for t in pool]
    said = set()
    for _ in range(2_000):
        inputs = [random_.choice(pool) for _ in range(random_.randint(1, 8))]
        pointers: list[int | None] = [t.data_ptr() for t in inputs]
        which = random_.sample(range(len(inputs)), random_.randint(1, len(inputs)))
        if random_.random() < 0.5:
            inputs[random_.randrange(len(inputs))] = random_.choice(pool)
        expected = compat.pointers_equal(inputs, pointers, which)
        assert same_addresses(pointers, which)(inputs) is expected
        said.add(expected)
    assert said == {False, True}


@pytest.mark.simgpu
def test_memory_that_was_reused_raises() -> None:
    """As ``data_ptr()`` does, with the explanation, in both."""
    native.build()
    t = torch.ones(4, device="cuda")
    pointers = [t.data_ptr()]
    tests = [
        same_addresses(pointers, [0]),
        lambda inputs: compat.pointers_equal(inputs, pointers, [0]),
    ]
    torch._C._set_storage_data_ptr_access_error_msg(t.untyped_storage()._cdata, "reused")
    for test in tests:
        with pytest.raises(RuntimeError, match="reused"):
            test([t])


def _reference(random_: random.Random, holders: list[object]) -> StorageWeakRefWrapper:
    """To the storage of an output, which may be cached, and may be held in any way."""
    t = torch.ones(random_.choice((0, 1, 5)))
    ref = StorageWeakRefWrapper(t)
    if random_.random() < 0.7:
        slots: list[torch.Tensor | None] = [None, t, t.clone()]
        slots[2] = None
        del t
        ref.attach_cache(slots, 1)
        holders.append([slots])
        how = random_.randrange(7)
        if how == 0:
            holders.append(slots[1])
        elif how == 1:
            holders.append(slots[1].detach())  # type: ignore[union-attr]
        elif how == 2:
            holders.append(slots[1].untyped_storage())  # type: ignore[union-attr]
        elif how == 3:
            slots[1] = None
        elif how == 4:
            x = torch.ones((), requires_grad=True)
            holders.append(x * slots[1])  # type: ignore[operator]
        return ref
    if random_.random() < 0.5:
        holders.append(t[:0])
    return ref


def test_the_same_outputs_are_live() -> None:
    native.build()
    find_live = liveness.find_live()
    assert find_live is not liveness.slowly
    random_ = random.Random(0)
    said = set()
    for _ in range(1_000):
        holders: list[object] = []
        refs = [_reference(random_, holders) for _ in range(random_.randrange(7))]
        live = list(find_live(refs))
        assert (
            live
            == list(liveness.slowly(refs))
            == [i for i, r in enumerate(refs) if not r.expired()]
        )
        said |= {r.expired() for r in refs}
    assert said == {False, True}


class _Given(torch.autograd.Function):
    """Returns a tensor that was there before, as compiled code that replays does."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, there: list[torch.Tensor]) -> torch.Tensor:
        return there[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _alone(t: Any) -> None: ...
def _leaf(t: Any) -> None:
    t.requires_grad_()


def _written(t: Any) -> None:
    t.add_(1)


def _named(t: Any) -> None:
    t.mine = 1


def _unnamed(t: Any) -> None:
    t.mine = 1
    del t.mine


def _retaining(t: Any) -> None:
    t.requires_grad and t.retain_grad()


def _hooked(t: Any) -> None:
    t.requires_grad and t.register_hook(lambda grad: None)


def _with_grad(t: Any) -> None:
    t.grad = torch.ones_like(t)


def _hooked_once(t: Any) -> None:
    if not t.requires_grad:
        t.requires_grad_().register_hook(lambda grad: None)
        t.requires_grad_(False)


def _hooked_after(t: Any) -> None:
    if not t.requires_grad:
        t.requires_grad_().register_post_accumulate_grad_hook(lambda t: None)
        t.requires_grad_(False)


def _of_a_class(t: Any) -> None:
    t.__class__ = torch.nn.Parameter


_WAYS = (
    *(_leaf, _written, _named, _unnamed, _retaining, _hooked),
    *(_with_grad, _hooked_once, _hooked_after, _of_a_class),
)


def test_the_same_is_left_on_outputs_and_a_graph_goes() -> None:
    """What C++ does not report is as if it had been cleared in Python."""
    clean = native.build().clean
    random_ = random.Random(0)
    said = set()
    for _ in range(1_000):
        tensors: list[Any] = [torch.ones(3) for _ in range(random_.randint(1, 5))]
        has_graph, done = [], []
        for i, t in enumerate(tensors):
            if random_.random() < 0.5:
                tensors[i] = t = _Given.apply(torch.ones(3, requires_grad=True), [t])
            has_graph.append(t.requires_grad)
            done.append(random_.choice((_alone, _alone, *_WAYS)))
            if done[-1] in (_leaf, _hooked_once, _hooked_after) and has_graph[-1]:
                done[-1] = _alone
            with torch.no_grad():
                done[-1](t)
        which = random_.sample(range(len(tensors)), random_.randint(1, len(tensors)))
        before = marked(tensors, which)
        with torch.inference_mode(random_.random() < 0.5):
            left = list(clean(tensors, which))
        only_graph = [i for i in which if has_graph[i] and done[i] in (_alone, _unnamed)]
        assert left == [i for i in before if i not in only_graph]
        for i in only_graph:
            assert tensors[i].is_leaf
            assert not tensors[i].requires_grad
        said |= {(has_graph[i], done[i], i in left) for i in which}
    assert len(said) == 2 + 2 * len(_WAYS) - 3


@pytest.mark.simgpu
@pytest.mark.parametrize("inference", [False, True])
def test_another_takes_the_place_of_an_output(inference: bool) -> None:
    native.build()
    compat.set_cached_tensors_enabled(True)
    outcomes = []
    for way in (native.build().replace, replaced):
        whole = torch.arange(12.0, device="cuda")
        twin, held = whole[2:].as_strided((2, 3), (1, 2)), whole.view(3, 4)
        compat.add_cached_tensor(held)
        with torch.inference_mode(inference):
            other = way(held, twin, "it was reused")
        with pytest.raises(RuntimeError, match="it was reused"):
            held.data_ptr()
        with pytest.raises(RuntimeError, match="it was reused"):
            held + 1
        assert whole.sum() == 66
        outcomes.append(
            (
                *(other.data_ptr() - whole.data_ptr(), other.shape, other.stride(), other.dtype),
                *(other.is_inference(), other._is_view(), other.requires_grad, other._version),
                *(torch._C._is_cached_tensor(other), torch._C._is_cached_tensor(held)),
                compat.storage_use_count(whole.untyped_storage()._cdata),
            )
        )
        compat.remove_cached_tensor(other)
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 8
    assert outcomes[0][-3:-1] == (True, False)
