"""Snapshots of torch's allocator, ours or anybody's: read without executing any, reported, named.

``reading`` checks a pickle and loads it, ``shape`` checks what it holds; ``to_model`` makes the
account of each device; ``names`` says what a line of generated code is by a profile, and ``enrich``
writes that where viewers of snapshots show it.
"""
