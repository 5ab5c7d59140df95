"""The run-time tracker: periodic snapshots, named operations, operator statistics, a file at
shutdown. ``docs/tracker.md`` says how it is used, what it costs and what it cannot see.

Read in this order: ``tensors.py`` (which tensors are alive), ``sources.py`` (what allocators and
the system say), ``operations.py`` with ``places.py`` and ``ration.py`` (what the user names),
``snapshots.py`` (all put together), ``operators.py`` (what torch runs), ``fold.py`` (what a file
adds up to, and how it stays bounded), ``journal.py`` (the file while it grows), ``recorder.py``
(all that is recorded), ``tracker.py`` (the tracker's life), ``lifecycle.py`` (signals, exit, fork),
``api.py`` (what users call). ``fold``, ``journal``, ``settings``, ``naming`` and ``ration`` need no
torch.
"""
