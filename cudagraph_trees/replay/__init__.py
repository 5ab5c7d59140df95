"""Describes what a recording does when it is called again."""
