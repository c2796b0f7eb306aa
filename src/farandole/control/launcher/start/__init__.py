"""Starts a job, with farandole's own agents or through mpirun and srun."""
