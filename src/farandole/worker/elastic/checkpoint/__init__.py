"""Checkpoints, which survive the loss of all workers: their content, which rank writes each part, and completion."""
