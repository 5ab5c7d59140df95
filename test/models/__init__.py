"""Models to test memprof on."""
