"""The job as the user wants it: its hosts, its options, and the machine that the launcher runs on."""
