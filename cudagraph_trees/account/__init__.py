"""Describes what was done, and what lies where: for profiles and reports."""
