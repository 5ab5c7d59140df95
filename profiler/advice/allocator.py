"""Memory that the allocator holds and nobody uses."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Profile
from .finding import MIN_BYTES, MIN_FRAGMENTED, Evidence, Finding, FindingKind


def fragmentation(profile: Profile) -> Iterator[Finding]:
    if profile.tracker is None:
        return
    worst: dict[str, tuple[int, int, int, str]] = {}
    for snapshot in profile.tracker.snapshots:
        for device, memory in snapshot.devices.items():
            reserved, allocated = memory.reserved_bytes, memory.allocated_bytes
            # On the CPU reserved bytes are the resident set, which is not the allocator's alone.
            if device.startswith("cpu") or reserved is None or allocated is None:
                continue
            if device not in worst or reserved > worst[device][0]:
                name = snapshot.name or snapshot.kind.value
                worst[device] = (reserved, allocated, snapshot.time_ns, name)
    findings = []
    for device, (reserved, allocated, _, name) in worst.items():
        nbytes = reserved - allocated
        if nbytes < max(MIN_BYTES, MIN_FRAGMENTED * reserved):
            continue
        findings.append(
            Finding(
                FindingKind.FRAGMENTATION,
                f"{device}: {100 * nbytes / reserved:.0f} % of what the allocator holds is unused",
                nbytes,
                f"reserved on {device}",
                "set PYTORCH_ALLOC_CONF=expandable_segments:True, allocate large and long-lived "
                "tensors first, and round sizes that vary (roundup_power2_divisions)",
                (
                    Evidence(f"reserved at the snapshot `{name}`", reserved),
                    Evidence("allocated then", allocated),
                ),
                "expandable-segments",
            )
        )
    yield from sorted(findings, key=lambda f: -f.nbytes)
