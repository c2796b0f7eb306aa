"""The roster: which workers are in the world, decided by a pure function and served to them."""
