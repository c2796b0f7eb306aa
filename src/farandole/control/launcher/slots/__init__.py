"""The pure rules that decide which slots get a worker, and when."""
