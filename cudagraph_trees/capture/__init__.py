"""Runs that take memory of the pool, and what becomes of those that fail."""
