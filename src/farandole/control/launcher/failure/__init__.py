"""How workers ended, which failure was the first, and how that is reported."""
