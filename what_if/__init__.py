"""Memory that a program would take: simulated runs, searches over them, limits in tests."""
