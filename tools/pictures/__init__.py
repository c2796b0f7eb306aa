"""Pictures of real runs for the documentation: `python -m tools.pictures`."""
