"""The worker side: the code that runs in a training process, below the front ends."""
