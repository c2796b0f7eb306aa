"""Jobs as people speak of them, wherever they run: what is asked for, how it is, and what can be done with it."""
