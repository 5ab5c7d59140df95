"""What a recording does when it is called again."""
