"""What the user wants: the job, its hosts, its options, and the machine the launcher runs on."""
