"""Pictures of the documentation that show real runs: `python -m tools.pictures`."""
