"""Wrapped functions, and the manager that runs each call of them."""
