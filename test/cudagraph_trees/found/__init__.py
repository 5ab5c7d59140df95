"""What random programs (``make fuzz-trees``) have found: one minimal program a test."""
