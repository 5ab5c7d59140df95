"""What a training step takes on a device, and where: by kinds of work, and by modules."""

from __future__ import annotations

from dataclasses import dataclass, field

from .limits import Count


@dataclass(slots=True, kw_only=True)
class KindTime:
    """What a step does of one kind of work: launches, or copies, and what they take one by one.

    Attributes:
        kind: in words, e.g. ``matrix products``.
        nbytes: of device memory, read and written; of a copy over the bus, copied; of a collective,
            sent to other ranks.
    """

    kind: str
    launches: Count
    device_ns: Count
    flops: Count
    nbytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTime:
    """What calls of a module take on the device without those of modules inside of it, and their
    backwards. ``module`` is the classes whose ``forward`` ran, as in ``Held.modules``, so that
    equal blocks of a model are together; empty of what was launched outside of such calls, by an
    optimizer for one, and in a program with compiled code by modules that are not compiled."""

    module: str
    device_ns: Count


@dataclass(slots=True, kw_only=True)
class StepTime:
    """The time of one step on a device, in ns.

    Attributes:
        measured: whether it is an estimate from measured kernels of this GPU; else no step is
            faster than ``device_ns``.
        device_ns: from the first begin to the last end, the host left out.
        host_ns: that the host takes for its launches alone; 0 where that was not measured.
        kinds: those that there are.
        modules: those that there are, the longest first.
        launches: by the host; the launch of a graph is one.
        unknown: launches whose work is not known, which count as none, or whose FLOPs are not.
        at_least: kinds of which some were not measured, and count at the speed of the data sheet.
        peak_flops: FLOP/s of the GPU for products of the types that they are of.
        source: of the GPU's speed.
    """

    measured: bool
    device_ns: Count
    host_ns: Count
    kinds: list[KindTime]
    modules: list[ModuleTime]
    launches: Count
    graphs: Count
    unknown: Count
    at_least: list[str] = field(default_factory=list)
    peak_flops: float
    source: str

    @property
    def step_ns(self) -> int:
        """Time of a step: the device's or the host's, whichever is longer."""
        return max(self.device_ns, self.host_ns)

    @property
    def flops(self) -> int:
        return sum(kind.flops for kind in self.kinds)

    @property
    def utilisation(self) -> float:
        """The share of the GPU's FLOP/s that the step's FLOPs are, recomputed ones too (HFU; where
        nothing is computed again the same as MFU)."""
        return self.flops / self.peak_flops / (self.step_ns / 1e9) if self.step_ns else 0.0
