"""What was recorded and why, and what a pool's bytes are."""
