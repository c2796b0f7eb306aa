"""The dashboard: a read-only page about jobs, in a browser. See docs/how-to/dashboard.md.

From what places and jobs say (`sources`) to what a page shows (`view_model`, `charts`, `timeline_window`, all pure),
and the server that hands it out (`app`, `access`, `serve`).
"""
