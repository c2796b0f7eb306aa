"""Jobs on a Ray cluster with the same verbs, through the REST interface of Ray's jobs."""
