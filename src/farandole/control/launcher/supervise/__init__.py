"""A running job: its hosts, its workers, its end."""
