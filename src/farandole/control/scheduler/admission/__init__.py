"""Admissions: which jobs get slots, given their order and the room. One in each file.

A function gets the ranked jobs and the room, and returns the grants and, for the jobs that get nothing, the reasons.
All of a job's slots are granted together, or none (gang scheduling).
"""
