"""Files that nobody should hand to a reader."""
