"""Starting jobs through other programs: mpirun and srun."""
