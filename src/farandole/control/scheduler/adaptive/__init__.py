"""The adaptive policy: models of how jobs scale, fitted to their reports, and the best allocation for all jobs."""
