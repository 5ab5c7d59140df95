"""A folder that processes of a simulated script have first on PYTHONPATH, for its
``sitecustomize``."""
