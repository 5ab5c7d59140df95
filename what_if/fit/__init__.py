"""``memprof fit``: the largest batch, the smallest GPU, and what saves memory.

The order of reading: ``memprof/commands/fit.py`` is where it starts. ``variables`` reads what may
be varied, ``tries`` runs one try on the simulated device and says what came of it, ``table``
goes through the rows, finds the largest value of a range in few tries and prints what fits,
``trials`` tries changes of a program.
"""
