"""Checks hosts and prepares them for workers."""
