"""What grew of all that was reserved on a device, by what it was for and where it was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .diff_model import Quantity, changes, place_of
from .model import BEFORE, AccountRow, DeviceAccount, Profile


def account_quantities(
    before: Profile, after: Profile, device: str | None = None
) -> Iterator[Quantity]:
    """The reserved peak of each device that both profiles have an account of.

    Args:
        before, after: the profiles.
        device: of this one alone.
    """
    old, new = ({a.device: a for a in p.accounts} for p in (before, after))
    for name in (n for n in new if n in old and device in (None, n)):
        pair = old[name], new[name]
        views = {
            "category": changes(*(_bytes(a, lambda r: r.purpose.label) for a in pair)),
            "module": changes(*(_bytes(a, lambda r: r.modules or "(no module)") for a in pair)),
            "node": changes(*(_bytes(a, _place) for a in pair)),
        }
        yield Quantity("reserved", pair[0].reserved, pair[1].reserved, views, name)


def _bytes(account: DeviceAccount, key: Callable[[AccountRow], str]) -> Counter[str]:
    """All that is reserved, blocks by ``key``."""
    found: Counter[str] = Counter()
    for row in account.rows:
        found[key(row)] += row.nbytes
    found["(rounding)"] += account.rounding
    found["(freed, in use by a stream)"] += account.awaiting
    for pool in account.pools:
        found["(free)" if pool.name == "general" else "(free, private pools)"] += pool.free
    found["(not explained)"] += account.unexplained
    return found


def _place(row: AccountRow) -> str:
    # Not the nodes: names of FX count from the start of the graph.
    if row.frame is not None:
        return place_of(row.frame)
    if row.holder:
        return row.holder
    return f"({BEFORE})" if row.detail == BEFORE else "(autograd)"
