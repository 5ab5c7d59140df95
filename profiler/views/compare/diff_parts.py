"""Growth of all that was reserved on a device, from accounts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from memprof.profiler.model import BEFORE, DeviceAccount, Held, Profile

from .diff_model import Quantity, changes, place_of


def account_changes(before: Profile, after: Profile) -> tuple[list[Quantity], list[str]]:
    """Reserved bytes of each device that both profiles have an account of: at the fullest instants
    where both know theirs, and at the ends of sessions where neither does; and, in words, devices
    whose fullest instant only one of them knows."""
    old, new = ({a.device: a for a in p.accounts} for p in (before, after))
    found, notes = [], []
    for name in (n for n in new if n in old):
        pair = old[name], new[name]
        was, now = pair
        if was.present != now.present:
            notes.append(f"the peak of {name}: only {'after' if was.present else 'before'}")
        else:  # Of what is there now the account is no peak's.
            found.append(_reserved("reserved end" if now.present else "reserved", name, was, now))
    return found, notes


def _reserved(quantity: str, device: str, old: DeviceAccount, new: DeviceAccount) -> Quantity:
    pair = old, new
    views = {
        "category": changes(*(_bytes(a, lambda r: r.category.label) for a in pair)),
        "module": changes(*(_bytes(a, lambda r: r.modules or "(no module)") for a in pair)),
        "line": changes(*(_bytes(a, _place_of_row) for a in pair)),
    }
    return Quantity(quantity, old.reserved, new.reserved, views, device)


def _bytes(account: DeviceAccount, key: Callable[[Held], str]) -> Counter[str]:
    """Bytes of all that is reserved on a device: blocks by ``key``, the rest by its name."""
    found: Counter[str] = Counter()
    for row in account.rows:
        found[key(row)] += row.nbytes
    found["(rounding)"] += account.rounding
    found["(freed, in use by a stream)"] += account.awaiting
    found["(given back)"] += account.given_back
    for pool in account.pools:
        found["(free)" if pool.name == "general" else "(free, private pools)"] += pool.free
    found["(not explained)"] += account.unexplained
    return found


def _place_of_row(row: Held) -> str:
    # Not the nodes: names of FX count from the start of the graph.
    if row.frame is not None:
        return place_of(row.frame)
    if row.holder:
        return row.holder
    return f"({BEFORE})" if row.detail == BEFORE else "(autograd)"
