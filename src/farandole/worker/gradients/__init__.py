"""How the gradients of a training step are reduced, for any framework: see `reducer` and `gradient_front_end`."""
