"""The path of workers' output and the launcher's messages to a terminal, a pipe and files."""
