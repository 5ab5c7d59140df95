"""Helpers without a subject of their own: text, writing of files, errors, forks, hosts."""
