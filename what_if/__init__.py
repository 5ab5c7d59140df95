"""Memory that a program would take: simulated runs, searches, limits in tests."""
