"""What a program would take: simulated runs, searches over them, limits in tests, estimates."""
