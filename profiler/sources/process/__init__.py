"""The run-time tracker: periodic snapshots, named operations, operator statistics, a file at
shutdown. ``docs/tracker.md`` says how it is used, what it costs and what it cannot see.

Read in this order: ``tensors.py`` (which tensors are alive), ``sources.py`` (what allocators and
the system say), ``operations.py`` with ``places.py`` (what the user names), ``operators.py`` (what
torch runs), ``record_file.py`` (the file), ``recorder.py`` (all that is recorded, and a snapshot of
it), ``tracker.py`` (the tracker's life), ``api.py`` (what users call; signals, exit, fork).
``record_file``, ``settings``, ``naming`` need no torch.
"""
