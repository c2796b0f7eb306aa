"""Jobs on an LSF cluster with the same verbs, through bsub, bjobs, bmod, bkill, bstop, brequeue and bresume."""
