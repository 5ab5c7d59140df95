"""Profile files: frames, what they hold, reading and checking them. No torch, no views."""
