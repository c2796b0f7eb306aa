"""Reduction of a training step's gradients, for any framework; it begins in `reducer` and `gradient_front_end`."""
