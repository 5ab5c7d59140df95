"""``memprof simulate``: how much device memory a CUDA script takes, without a GPU.

The order of reading: ``request`` is what was asked for; ``parent`` starts the script on the
simulated device (``simulated_cuda/``) and reads what became of it; ``launch`` is the other side,
in the script's process: it watches the devices (``profiler/device/``), turns process groups into
fake ones (``ranks``), ends the run (``ending``) and writes an ``outcome``.
"""
