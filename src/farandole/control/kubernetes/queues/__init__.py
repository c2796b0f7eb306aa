"""Farandole's queues, which decide how many workers each job may have, by the policies of `control.scheduler`."""
