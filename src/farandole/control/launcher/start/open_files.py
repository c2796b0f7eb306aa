"""The number of files that a launcher may have open: connections to agents, and links that it relays for workers."""

from __future__ import annotations

import resource

from farandole.errors import SpecError

# Only a part of the usual hard limit of half a million or more: some programs iterate over all descriptors.
ENOUGH = 65536
_FOR_WORKER = 2
_FOR_LAUNCHER = 64


def raise_limit(workers: int | None) -> None:
    """Raise this process's soft limit of open files, as far as the hard limit and `ENOUGH` allow.

    Args:
        workers: number of workers of the job; None: not known yet.

    Raises:
        SpecError: the job needs more than the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else hard
    needed = _FOR_LAUNCHER + _FOR_WORKER * (workers or 0)
    if needed > most:
        raise SpecError(
            f"a job of {workers} workers takes at least {needed} open files, and the hard limit is {most}",
            "raise it: `ulimit -Hn`, LimitNOFILE= of a systemd service, --ulimit nofile= of a container",
        )
    wanted = min(most, max(needed, ENOUGH))
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
