"""What workers print and what the launcher says, on the way to a terminal, a pipe and files."""
