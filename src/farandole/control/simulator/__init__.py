"""Simulates scheduling policies on the jobs of a trace, and presents the results as figures and charts."""
