"""memprof in other people's training loops and dashboards; each module needs the package that it is
named after, and nothing here is imported unless asked for.

    from memprof.integrations.transformers import MemprofCallback  # Trainer(callbacks=[…])
    from memprof.integrations.lightning import MemprofCallback  # Trainer(callbacks=[…])
    from memprof.integrations.prometheus import PrometheusGauges  # memprof.profile(on_step=…)
    from memprof.integrations.opentelemetry import OpenTelemetryGauges

docs/guides/README.md has a page for each framework, docs/step-record.md one for dashboards.
"""
