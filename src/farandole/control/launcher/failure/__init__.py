"""The ends of workers, the first failure among them, and its report."""
