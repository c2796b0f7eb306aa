"""Gradients, batches and state of elastic training, for frameworks whose arrays are converted to NumPy's."""
