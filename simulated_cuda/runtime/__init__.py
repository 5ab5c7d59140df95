"""Describes what a simulated process has on PYTHONPATH: Python imports ``sitecustomize`` as it
starts."""
