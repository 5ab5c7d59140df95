"""From a buffer of generated code back to FX nodes, user source lines and modules.

* ``aot_nodes``: what each node of the AOT graph knows of its origin
* ``lowering``: what Inductor's ``GraphLowering`` knows of each buffer
* ``generated_code``: what each line of the generated wrapper does to buffers
* ``artifact``: the part of this that depends only on the compiled artifact, stored with it
* ``resolve``: artifact + AOT nodes of this process → the model's provenance
"""
