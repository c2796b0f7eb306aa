"""The program of a TrainingJob's launcher pod: the launcher, with its state in objects of the API server."""
