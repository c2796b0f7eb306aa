"""The files that timelines are written to, and reading them."""
