"""The worker side: what runs inside a training process, below the front ends."""
