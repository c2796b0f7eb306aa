"""Hosts are checked and made ready for workers."""
