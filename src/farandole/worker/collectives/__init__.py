"""The collectives, each declared once for all front ends; this package knows no framework.

A declaration (`declaration`, one file for each collective, all of them in `table`) has a collective's name, its
arguments with their defaults, the calls that are refused and their messages, the shape of the result, and its gradient.
A front end describes where its tensors are in memory (`front_end`). From both, `render` makes the functions that users
call: plain, asynchronous, in place and grouped.
"""
