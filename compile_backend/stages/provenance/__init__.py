"""From a buffer of generated code back to FX nodes, user source lines and modules.

* ``aot_nodes``: what each node of the AOT graph knows of its origin
* ``artifact``: what of this depends only on the compiled artifact, and is stored with it
* ``generated_code``: what each line of the generated wrapper does to buffers
* ``stage``: artifact + AOT nodes of this process → the model's provenance
"""
