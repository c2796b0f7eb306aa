"""The launcher's agent on one host: starts workers, forwards their output, and ends them.

Only this package runs on the hosts of a job, beside the workers themselves; it must load quickly.
"""
