"""Sizings, one in each file: functions that choose the number of slots of a job."""
