"""Jobs on Kubernetes: the operator that runs MPIJobs and TrainingJobs, and its installation.

Pure functions on plain data (`model`) decide what a job needs: `reconcile(observed) -> outcome`, one for each kind
(`mpijob`, `training_job`). `operator` is the process around them, which alone sends requests to the API server.
"""
