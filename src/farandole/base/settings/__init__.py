"""The settings of workers: one table, from which variables, flags, the C ABI's names and the docs' rows follow."""
