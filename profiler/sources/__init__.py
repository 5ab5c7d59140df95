"""Sources of profiles: torch's allocator, the whole process, ``torch.profiler`` traces, snapshots.

Of the profiler these alone know torch.
"""
