"""The functions with which a training script observes its own job."""
