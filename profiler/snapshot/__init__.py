"""Snapshots of torch's allocator, ours or anybody's: read without executing anything, reported, named.

``opcodes`` checks a pickle before it is loaded, ``reading`` loads it, ``shape`` checks what it holds;
``to_model`` makes the account of each device of it; ``names`` says what a line of generated code is
by a profile, and ``enrich`` writes that where viewers of snapshots show it.
"""
