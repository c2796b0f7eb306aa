"""Jobs on an LSF cluster, by the same verbs: bsub, bjobs, bmod, bkill, bstop, brequeue and bresume behind them."""
