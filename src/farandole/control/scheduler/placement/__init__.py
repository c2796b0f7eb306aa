"""Placements, one in each file: functions that choose the nodes on which a job gets its slots."""
