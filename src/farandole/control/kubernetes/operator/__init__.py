"""The operator's process: carries out the decisions of `reconcile` in a cluster, and observes the cluster for it."""
