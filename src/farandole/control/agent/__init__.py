"""The launcher's hand on one host: starts workers, forwards what they print, and ends them.

Only this package runs on the hosts of a job, beside the workers themselves; it must load quickly.
"""
