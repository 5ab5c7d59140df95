"""Steps in the tools that people look at."""

from __future__ import annotations

import pytest

from memprof.profiler.model import DeviceTotals, StepRecord

STEP = StepRecord(
    step=7,
    time_ns=1,
    duration_ns=500_000_000,
    ended_by="optimizer",
    rank=3,
    devices=[DeviceTotals("cuda:1", 100, 20, 40, 30, 50)],
    peak={"cuda:1": {"activation": 12, "parameter": 8}},
    recorded=1,
    replayed=2,
    fallen_back=3,
)
FIGURES = {
    ("step", ()): 7,
    ("step_seconds", ()): 0.5,
    ("graphs", ("recorded",)): 1,
    ("graphs", ("replayed",)): 2,
    ("graphs", ("fallen_back",)): 3,
    ("allocated_bytes", ("cuda:1",)): 20,
    ("reserved_bytes", ("cuda:1",)): 40,
    ("most_allocated_bytes", ("cuda:1",)): 30,
    ("most_reserved_bytes", ("cuda:1",)): 50,
    ("peak_bytes", ("cuda:1", "activation")): 12,
    ("peak_bytes", ("cuda:1", "parameter")): 8,
}


def test_each_figure_has_a_name_and_labels() -> None:
    found = {(name, tuple(labels.values())): value for name, labels, value in STEP.metrics()}
    assert found == {(name, ("3", *labels)): value for (name, labels), value in FIGURES.items()}


def test_prometheus_shows_the_latest_step() -> None:
    client = pytest.importorskip("prometheus_client")
    from memprof.integrations.prometheus import PrometheusGauges

    registry = client.CollectorRegistry()
    gauges = PrometheusGauges(registry)
    gauges(StepRecord(step=6, time_ns=1, duration_ns=1, ended_by="optimizer", rank=3))
    gauges(STEP)
    found = {
        (s.name.removeprefix("memprof_"), tuple(v for k, v in sorted(s.labels.items()))): s.value
        for metric in registry.collect()
        for s in metric.samples
    }
    assert len(found) == len(FIGURES)
    assert found["step", ("3",)] == 7
    assert found["graphs", ("3", "replayed")] == 2
    assert found["peak_bytes", ("activation", "cuda:1", "3")] == 12


def test_opentelemetry_shows_the_latest_step() -> None:
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    from opentelemetry.sdk.metrics import MeterProvider

    from memprof.integrations.opentelemetry import OpenTelemetryGauges

    reader = export.InMemoryMetricReader()
    gauges = OpenTelemetryGauges(MeterProvider([reader]).get_meter("memprof"))
    gauges(STEP)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    found = {
        (metric.name.removeprefix("memprof."), tuple(point.attributes.values())): point.value
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert found == {(name, ("3", *labels)): value for (name, labels), value in FIGURES.items()}
