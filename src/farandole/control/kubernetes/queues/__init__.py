"""Queues of ours: they decide how many workers each job may have, by the policies of `farandole.control.scheduler`."""
