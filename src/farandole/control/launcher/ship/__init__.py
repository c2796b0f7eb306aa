"""Sends the code to the hosts of a job: which files are sent, which ones git ignores, and how they get there."""
