"""The operator's process: what `reconcile` decides, done to a cluster, and a cluster seen as `reconcile` takes it."""
