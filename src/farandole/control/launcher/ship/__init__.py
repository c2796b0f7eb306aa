"""Sending the code to the hosts of a job: what is sent, what git ignores, and how it gets there."""
