"""Discovery of a job's hosts."""
