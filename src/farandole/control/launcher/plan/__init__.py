"""The placement of workers on hosts and their environment, computed as data; the dry run prints it."""
