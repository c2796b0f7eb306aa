"""Jobs on a cluster with a batch system: the parts that all batch systems share."""
