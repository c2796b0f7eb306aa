"""The command lines that start processes on hosts, as data, with one file for each launch target."""
