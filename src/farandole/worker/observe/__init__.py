"""Seeing what happens: the timeline of all ranks, and where in its program a worker is that others wait for."""
