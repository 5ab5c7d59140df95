"""Steps as gauges for Prometheus: ``pip install torch-memprof[prometheus]``."""

from __future__ import annotations

from prometheus_client import (  # type: ignore[import-not-found, unused-ignore]
    REGISTRY,
    CollectorRegistry,
    Gauge,
)

from memprof.profiler.model import StepRecord


class PrometheusGauges:
    """Shows the latest step; for ``memprof.profile(on_step=PrometheusGauges())``.

        prometheus_client.start_http_server(9400)

    Args:
        registry: of ``prometheus_client``; it may have one of these.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._gauges: dict[str, Gauge] = {}

    def __call__(self, step: StepRecord) -> None:
        for name, labels, value in step.metrics():
            if name not in self._gauges:
                self._gauges[name] = Gauge(
                    f"memprof_{name}", f"{name} of the latest step", labels, registry=self._registry
                )
            self._gauges[name].labels(**labels).set(value)
