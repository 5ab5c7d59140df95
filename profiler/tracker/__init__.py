"""The run-time tracker: periodic snapshots, named operations, operator statistics, a file at
shutdown. ``docs/tracker.md`` says how it is used, what it costs and what it cannot see.

Read in this order: ``tensors.py`` (which tensors are alive), ``memory.py`` (what allocators and
the system say), ``sources.py`` and ``snapshots.py`` (all put together), ``operations.py`` with
``operation_tree.py``, ``lanes.py`` and ``tracked_operation.py`` (what the user names),
``operators.py`` and ``operator_calls.py`` (what torch runs), ``thinning.py`` (how it stays
bounded), ``journal.py`` (the file while it grows) and ``fold.py`` (what such a file adds up to),
``recorder.py`` (all that is recorded), ``tracker.py`` (the tracker's life), ``lifecycle.py``
(signals, exit, fork), ``api.py`` (what users call).

``files``, ``fold``, ``journal``, ``settings``, ``naming``, ``operator_calls``, ``ration`` and
``thinning`` need no torch.
"""
