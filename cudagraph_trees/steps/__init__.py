"""The end of a step, and inputs that move from step to step."""
