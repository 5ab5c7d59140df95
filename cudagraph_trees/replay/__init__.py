"""Replays: calls of a recording that is there."""
