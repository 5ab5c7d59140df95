"""The run-time tracker: periodic snapshots, named operations, operator statistics, a file at
shutdown. ``docs/tracker.md`` says how it is used, what it costs and what it cannot see.

Read in this order: ``tensors.py`` (which tensors are alive), ``sources.py`` (what allocators and
the system say), ``operations.py`` with ``places.py`` and ``ration.py`` (what the user names),
``operators.py`` (what torch runs), ``journal.py`` (the file while it grows), ``recorder.py`` (all
that is recorded, and a snapshot of it), ``tracker.py`` (the tracker's life), ``api.py`` (what users
call; signals, exit, fork). ``journal``, ``settings``, ``naming`` and ``ration`` need no torch;
``profiler/file/tracker_fold.py`` says what a file adds up to.
"""
