"""Reduction of a training step's gradients, for any framework; start reading in `reducer` and `gradient_front_end`."""
