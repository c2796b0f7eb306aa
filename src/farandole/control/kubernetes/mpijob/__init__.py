"""MPIJobs of mpi-operator, in all versions: their pods, and how the pods find and reach each other."""
