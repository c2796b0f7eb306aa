"""Placements: on which nodes a job gets its slots. One in each file."""
