"""How workers ended, which of them failed first, and the report about it."""
