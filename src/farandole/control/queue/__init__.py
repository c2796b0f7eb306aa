"""A queue for a few machines: jobs wait for slots, which a policy assigns, and outlive the daemon."""
