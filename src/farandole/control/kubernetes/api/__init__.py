"""The client of the API server that all parts share: operator, election, installation, launcher pods and the place."""
