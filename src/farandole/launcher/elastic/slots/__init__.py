"""Which slots of an elastic job get a worker, and when: a pure function of what is known and what happens."""
