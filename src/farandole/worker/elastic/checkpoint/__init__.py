"""Checkpoints against the loss of all workers: their content, the rank that writes each part, and their completion."""
