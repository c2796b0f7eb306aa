"""Observation: the timeline of all ranks, and the location of a worker that others wait for."""
