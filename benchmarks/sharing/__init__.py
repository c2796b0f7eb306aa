"""Jobs that share hosts through the queue, beside what the simulator predicts: `python -m benchmarks queue`."""
