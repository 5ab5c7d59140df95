"""Folder on the PYTHONPATH of a simulated process: Python imports ``sitecustomize`` as it
starts."""
