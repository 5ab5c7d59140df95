"""Tests of the time of a step."""
