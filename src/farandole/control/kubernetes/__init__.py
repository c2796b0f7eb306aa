"""Jobs on Kubernetes: the operator that runs MPIJobs and TrainingJobs, and how it is installed.

What a job needs is decided by pure functions, `reconcile(observed) -> outcome`, one for each kind (`mpijob`,
`training_job`), on plain data (`model`). `operator` is the process around them, which alone talks to the API server.
"""
