"""Timeline files: their formats, reading them, and summaries."""
