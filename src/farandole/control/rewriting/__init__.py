"""Making training scripts distributed: they are parsed, edited as text, and never executed."""
