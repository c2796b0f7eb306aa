"""The command lines with which processes are started on hosts, as data: one file a launch target."""
