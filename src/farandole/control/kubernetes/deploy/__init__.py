"""The installation in a cluster as data: kinds, rights and the operator's Deployment."""
