"""Which hosts a job has."""
