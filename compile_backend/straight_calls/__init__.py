"""Calls that go straight from Dynamo's function to compiled code and to its backward.

Note [Straight calls]
~~~~~~~~~~~~~~~~~~~~~
Between the two AOTAutograd's run-time wrapper takes care of everything that a graph may do: write
to its inputs, return views of them, take subclasses apart, thread tokens and random states through.
Most graphs do nothing of it, and pay for the questions at each call: more than half of the host's
time of a small training step. For those ``calls.py`` does what is left; a graph that does more
keeps torch's wrapper, and so does each call in a situation that is not the common one: the first
call, a profiler, a gradient of a gradient, a retained graph, functorch, no_grad around a graph that
was compiled for training.

The autograd function derives from the one that AOTAutograd made and keeps its layout of saved
values, so that all who know that class (compiled autograd, checkpointing, memprof itself) see no
difference, and torch's backward can run after the straight forward. What is left to do, and in
which order, follows torch's ``RuntimeWrapper`` and ``AOTDispatchAutograd`` of 2.11 to 2.15
(``torch/_functorch/_aot_autograd/runtime_wrappers.py``); with another torch nothing is replaced.
``options={"straight_calls": False}`` switches it off.
"""
