"""What can go wrong with the cluster of the tests."""

from __future__ import annotations


class ClusterError(Exception):
    """A part of the cluster did not start, or does not answer; the text says which and why."""
