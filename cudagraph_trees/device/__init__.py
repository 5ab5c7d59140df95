"""Devices that graph trees run on; ``protocol`` says what one must offer."""
