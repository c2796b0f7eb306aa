"""TrainingJob, farandole's own kind of job: decisions as pure functions of the observed state.

Its pods are one *launcher pod* (see `control.kubernetes.launcher_pod`) and *worker pods*, whose agents dial it.
"""
