"""Kernels of the simulated device that compute: see docs/simulated-device.md.

`operators` runs each aten operator's CPU kernel on the device memory, `ttir` makes C of Triton's
kernels. Nothing but ``runtime/sitecustomize.py`` and tests turn it on.
"""
