"""A Kubernetes cluster on one machine: the real control plane, and nodes whose pods are processes in namespaces."""
