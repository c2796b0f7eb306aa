"""What is installed in a cluster: kinds, rights and the operator's Deployment, as data that all forms are made of."""
