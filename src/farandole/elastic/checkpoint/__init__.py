"""Checkpoints for the loss of everything: what is written, who writes which part, and when it counts as good."""
