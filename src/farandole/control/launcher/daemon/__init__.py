"""A job that outlives the terminal it was started from: its daemon, and the clients that show it."""
