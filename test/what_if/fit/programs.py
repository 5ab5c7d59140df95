"""Programs that are arithmetic."""

from __future__ import annotations

from memprof.profiler.model import Category, DeviceAccount, Held, PoolShare


def account_of(nbytes: int) -> DeviceAccount:
    """Of a program that takes so many bytes, all of them activations."""
    return DeviceAccount(
        "cuda:0",
        reserved=nbytes,
        most_allocated=nbytes,
        rows=[Held(Category.ACTIVATION, nbytes, 1)],
        pools=[PoolShare("general", nbytes, 0, 1, 0)],
    )
