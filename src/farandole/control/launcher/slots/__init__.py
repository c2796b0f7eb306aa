"""Pure policy that decides which slots get a worker, and when."""
