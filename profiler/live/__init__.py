"""Lives of storages, computed from a profile: timelines, live sets, categories, growth."""
