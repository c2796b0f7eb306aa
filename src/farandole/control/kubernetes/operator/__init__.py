"""The operator's process: observes the cluster, and carries out the decisions of `reconcile`."""
