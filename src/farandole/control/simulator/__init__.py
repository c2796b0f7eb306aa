"""What policies would do with the jobs of a trace: a simulated cluster, and what is told of it."""
