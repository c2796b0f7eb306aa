"""Our own kind of job: what a TrainingJob needs, as pure functions of what is there.

Its pods are one *launcher pod* (see `control.kubernetes.launcher_pod`) and *worker pods*, whose agents dial it.
"""
