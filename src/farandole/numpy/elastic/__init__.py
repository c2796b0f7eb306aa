"""Gradients, batches and state of elastic training, for frameworks whose arrays pass through NumPy."""
