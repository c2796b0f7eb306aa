"""What elastic training needs of frameworks whose arrays pass through NumPy: gradients, batches, the state."""
