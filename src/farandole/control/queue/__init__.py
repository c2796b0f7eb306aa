"""A queue for a few machines: jobs wait for slots, get them as a policy says, and outlive the daemon."""
