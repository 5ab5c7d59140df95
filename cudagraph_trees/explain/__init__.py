"""Explanations: recordings with their reasons, and the bytes of a pool."""
