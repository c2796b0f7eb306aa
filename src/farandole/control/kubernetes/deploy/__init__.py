"""The installation in a cluster: kinds, rights and the operator's Deployment, the data behind all its forms."""
