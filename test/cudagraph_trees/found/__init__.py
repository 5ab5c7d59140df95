"""What random programs (``trees.fuzz``) have found: one minimal program a test."""
