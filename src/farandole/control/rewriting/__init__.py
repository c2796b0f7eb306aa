"""A training script for one process made one for many: read as syntax, edited as text, and never executed."""
