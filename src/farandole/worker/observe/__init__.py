"""Observation: the timeline of all ranks, a worker's location in its program, metrics, and tests of a job's hosts."""
