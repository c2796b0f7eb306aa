"""The place `lsf`: job commands on an LSF cluster, by bsub, bjobs, bmod, bkill, bstop, brequeue and bresume."""
