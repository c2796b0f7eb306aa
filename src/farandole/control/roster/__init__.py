"""The roster: a pure function decides which workers are in the world, and a service sends them the result."""
