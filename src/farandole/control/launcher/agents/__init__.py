"""The launcher's connections to the agents on the hosts."""
