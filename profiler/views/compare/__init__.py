"""Comparisons: two profiles, and the ranks of one job."""
