"""Queues of ours: which TrainingJobs may have pods, and how many, by the policies of `farandole.scheduler`."""
