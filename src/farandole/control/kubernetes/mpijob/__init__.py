"""MPIJobs of mpi-operator, all versions: their pods, and how these find and reach each other."""
