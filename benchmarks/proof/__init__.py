"""Measures on a GPU what memprof promises: docs/real-gpu.md."""
