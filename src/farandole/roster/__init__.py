"""The roster: who is in the world, decided in a pure function and served to the workers."""
