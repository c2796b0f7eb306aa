"""Simulation of scheduling policies on the jobs of a trace, and its figures and charts."""
