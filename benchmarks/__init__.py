"""Measurements: farandole against its peers and against what the machine can do, all in one run, taking turns.

    python -m benchmarks            everything
    python -m benchmarks a d        some cases
    python -m benchmarks --quick    small and short, to see that it works

Machines differ and are busy with other work, so a time alone says little: what counts is the ratio of medians from
the same minutes.

- A *peer* is a library that can do the same: torch's gloo, Open MPI, MPICH, and farandole itself. `peers/` has one file
  for each: how its workers are started, and the *works* they can do.
- A *work* is one thing to time, such as an allreduce of a given size.
- A *team* is a peer's workers on one topology. They live through many measurements and sleep on a socket while others
  are measured, so that a library that spins does not disturb them.
- A *contender* is one column of a table: a team with a work.
- The *conductor* lets the contenders take turns, for several rounds. The slowest worker's time counts.
"""
