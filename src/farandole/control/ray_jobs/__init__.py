"""The place `ray`: job commands on a Ray cluster, by the REST interface of Ray Jobs."""
