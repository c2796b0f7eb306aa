"""Jobs, independent of where they run: their specification, their status, and the operations on them."""
