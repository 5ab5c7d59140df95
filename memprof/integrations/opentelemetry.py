"""Steps as gauges of OpenTelemetry: ``pip install torch-memprof[opentelemetry]``."""

from __future__ import annotations

from typing import Any

from opentelemetry.metrics import Meter, get_meter

from memprof.profiler.model import StepRecord


class OpenTelemetryGauges:
    """Shows the latest step; for ``memprof.profile(on_step=OpenTelemetryGauges())``.

    Args:
        meter: by default that of the program's meter provider.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or get_meter("memprof")
        self._gauges: dict[str, Any] = {}

    def __call__(self, step: StepRecord) -> None:
        for name, labels, value in step.metrics():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(f"memprof.{name}")
            self._gauges[name].set(value, labels)
