"""Tables for people, drawn by rich, which is imported on first use."""
