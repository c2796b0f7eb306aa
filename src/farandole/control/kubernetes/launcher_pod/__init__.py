"""What runs in the launcher pod of a TrainingJob: the launcher, with its state in objects of the API server."""
