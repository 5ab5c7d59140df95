"""The stages around the compilation of one graph, see ``pipeline.py``.

* ``describe``: what each input and output is, from AOTAutograd's metadata and Dynamo's sources
* ``provenance``: which FX nodes each buffer of the generated code comes from
* ``observe``: the first calls run instrumented and yield an ``AllocationProgram``
* ``graphs``: CUDA code runs in memprof's graph trees
* ``kernel_marks``: kernels of graphs carry their lines into traces, where that is asked for
"""
