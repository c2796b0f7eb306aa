"""Queues of ours: which jobs may have pods, and how many, by the policies of `farandole.control.scheduler`."""
