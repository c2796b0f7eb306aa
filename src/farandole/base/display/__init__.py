"""Tables for people, drawn by rich, which is imported when one is drawn."""
