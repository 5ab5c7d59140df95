"""Views of a profile: reports, exports, comparisons and advice. No torch, no files, no sources."""
