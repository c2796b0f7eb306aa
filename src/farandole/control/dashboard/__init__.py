"""The dashboard: a read-only page about jobs, in a browser (docs/how-to/dashboard.md).

Data flows from places and jobs (`sources`) to the contents of a page (`view_model`, `charts`, `timeline_window`, all
pure), and to the server that sends it (`app`, `access`, `serve`).
"""
