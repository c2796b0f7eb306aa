"""The worker's side of elastic training, without a framework: the next world, the samples, the state, checkpoints."""
