"""The core on which the engine's threads run, if the user has chosen one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from farandole.errors import SettingError


def core_of(cores: Sequence[int], local_rank: int) -> int | None:
    """Return the core for a worker with this local rank, an index into the list; None if the list is too short."""
    return cores[local_rank] if local_rank < len(cores) else None


@contextlib.contextmanager
def threads_on(core: int | None) -> Iterator[None]:
    """Restrict threads that are started in this context to one core, which they inherit; None: any core.

    Raises:
        SettingError: this process may not use that core.
    """
    if core is None:
        yield
        return
    earlier = os.sched_getaffinity(0)
    if core not in earlier:
        raise SettingError(
            f"FARANDOLE_THREAD_AFFINITY names core {core}, but this process may use {sorted(earlier)}. Correct it or "
            "unset it."
        )
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, earlier)
