"""Sizings: how many slots a job gets. One in each file."""
