"""Kernels of the simulated device that compute: see docs/simulated-device.md.

`operators` runs each aten operator's CPU kernel on the device memory, `kernels` runs Triton's
kernels as the C that `ttir` makes of them. Nothing but ``runtime/sitecustomize.py`` and tests turn
it on.
"""
