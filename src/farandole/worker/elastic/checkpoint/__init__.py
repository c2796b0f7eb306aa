"""Checkpoints against the loss of all workers: what is written, which rank writes which part, when it is complete."""
