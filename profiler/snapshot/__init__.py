"""Snapshots of torch's allocator, ours or anybody's: read without executing any, reported, named.

``opcodes`` checks a pickle before it is loaded, ``reading`` loads it, ``shape`` checks what it
holds; ``history`` and ``to_model`` make the account of each device; ``names`` says what a line
of generated code is by a profile, and ``enrich`` writes that where viewers of snapshots show it.
"""
