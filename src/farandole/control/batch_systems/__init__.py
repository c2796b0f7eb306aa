"""Jobs on a cluster that has a batch system: what is the same whichever that is."""
