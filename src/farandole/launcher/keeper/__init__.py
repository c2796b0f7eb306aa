"""A job that outlives the terminal it was started from: its keeper, and the fronts that show it."""
