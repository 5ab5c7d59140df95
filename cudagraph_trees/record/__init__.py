"""Calls that are no replays: warmed up, recorded, or run without a graph."""
