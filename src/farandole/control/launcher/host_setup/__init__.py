"""Checks hosts and makes them ready for workers."""
