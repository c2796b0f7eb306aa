"""Orders: which job comes before which. One in each file, as a function that ranks jobs.

A function gets all jobs, in the order of their submission, and returns them in its own. Functions of the stdlib's sort
keep the order of equals, so that ties go to the job that was submitted first.
"""
