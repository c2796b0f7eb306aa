"""The client of the API server, for the operator, election, installation, launcher pods and the place `kubernetes`."""
