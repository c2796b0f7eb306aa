"""Scripts of workers, and parsing of their output, for tests of launches."""

from __future__ import annotations

from collections.abc import Callable

from tests.hosts.bed import Bed

Hosts = Callable[..., Bed]

MEET = """
basics.init()
print(rank, size, basics.local_rank(), basics.cross_rank(), os.uname().nodename, total(rank))
"""
# Trains until it is ended, and reports its beginning.
TRAIN = """
basics.init()
total(1)
tell(f"pid{rank}", os.getpid())
while True:
    total(1)
    time.sleep(0.01)
"""
# A lost host must be detected within 2 s. These tests run beside others; more than this is a failure in any case.
NOTICED_SECONDS = 10.0


def lines(out: str) -> list[str]:
    return sorted(line.partition(":")[2] for line in out.splitlines())
