"""Makes training scripts distributed: parses them, edits their text, and never executes them."""
