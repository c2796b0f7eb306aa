"""What a training script imports to observe its own job."""
