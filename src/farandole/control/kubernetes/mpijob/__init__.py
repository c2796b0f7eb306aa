"""MPIJobs of mpi-operator, all versions: which pods they have, and how these find and reach each other."""
