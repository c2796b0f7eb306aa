"""Which slots get a worker, and when: a pure policy."""
