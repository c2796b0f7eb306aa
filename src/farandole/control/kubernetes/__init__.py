"""Jobs on Kubernetes: the operator that runs MPIJobs and TrainingJobs, and how it is installed.

Pure functions decide what a job needs, `reconcile(observed) -> outcome`, one for each kind (`mpijob`, `training_job`),
on plain data (`model`). `operator` is the process around them; only it talks to the API server.
"""
