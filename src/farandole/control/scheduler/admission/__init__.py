"""Admissions, one in each file: functions that choose the jobs that get slots.

A function gets the ranked jobs and the room, and returns the grants, and the reasons for the jobs that get nothing.
Either all slots of a job are granted, or none (gang scheduling).
"""
