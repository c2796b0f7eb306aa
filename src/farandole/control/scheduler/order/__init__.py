"""Orders, one in each file: functions that rank jobs.

A function gets all jobs in the order of their submission, and returns them in its own order. Python's sort is stable,
so that ties go to the job that was submitted first.
"""
