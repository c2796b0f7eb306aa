"""The limits of an elastic job, as the user wants them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from farandole.base.display.wording import count
from farandole.errors import SpecError

TIMEOUT_SECONDS = 600.0
# --elastic-timeout may be infinite; this is longer than anyone waits, and still within what clocks can be set to.
MOST_SEARCH_SECONDS = 1e6
GRACE_SECONDS = 30.0
# Clouds announce a preemption 30 s to 2 minutes before, and recommend checking at this interval.
PREEMPTION_SECONDS = 5.0
DISCOVERIES = ("script", "file", "dns", "dial")
DIAL = "dial"


@dataclass(frozen=True)
class Elastic:
    """The limits of an elastic job: its numbers of workers, the source of its hosts, and its timeouts.

    Raises:
        SpecError: a value is not valid.
    """

    min_size: int
    """Minimum number of workers; with fewer, the job waits."""
    max_size: int | None
    """Maximum number of workers; None: as many as there are slots."""
    discovery: str = ""
    """`script:PATH`, `file:PATH`, `dns:NAME[:SLOTS]`, or `dial:PORT:FILE` for hosts that dial in and have the secret in
        FILE; `DIAL` for hosts that dial the reception passed to `launch`; "": only the hosts of the spec."""
    slots: int | None = None
    """Slots of discovered hosts for which discovery gives no number."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds to wait for min_size workers."""
    reset_limit: int | None = None
    """Maximum number of worlds after the first one; None: no limit."""
    cooldown: tuple[float, float] | None = None
    """Horovod's range: the shortest and the longest time, in seconds, that a failed slot stays unused. None: our own
    policy."""
    blacklist: bool = False
    """Whether a host with a failed worker is excluded entirely, for good or for the time of `cooldown`, as in
    Horovod."""
    spares: int = 0
    """Number of idle workers kept beside a full world, started and connected."""
    grace: float = GRACE_SECONDS
    """Seconds that a worker has to leave when asked to."""
    preemption_file: str = ""
    """Path of a file whose appearance on a host announces that the host will be reclaimed; "": none."""
    preemption_command: str = ""
    """Shell command that exits with 0 on a host that will be reclaimed; "": none."""
    preemption_interval: float = PREEMPTION_SECONDS
    """Seconds between checks of each host."""
    fills_at_once: bool = False
    """Whether every slot gets a worker from the start, up to `max_size`; the spec's `num_proc` is then the number of
        slots to wait for, as in Horovod. Otherwise the first world has `num_proc` workers, and others follow."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_discovery()
        self._check_times()

    @property
    def hosts_dial(self) -> bool:
        """Whether hosts dial a launcher that may have a successor, so that they outlive it."""
        return self.discovery.startswith("dial:")

    @property
    def search_timeout(self) -> float:
        """Seconds for which workers continue without a launcher while they look for the roster of a new one."""
        return min(self.timeout, MOST_SEARCH_SECONDS)

    def check_first_size(self, num_proc: int) -> None:
        """Check that the first world may have this number of workers.

        Raises:
            SpecError: it may not.
        """
        if num_proc < self.min_size or (self.max_size is not None and num_proc > self.max_size):
            most = "" if self.max_size is None else f" and at most {self.max_size}"
            raise SpecError(
                f"a start with {count(num_proc, 'worker')} is outside the job's limits: at least {self.min_size}{most} "
                "workers",
                "start with a number within these limits, or change them",
            )

    def _check_sizes(self) -> None:
        if self.min_size < 1:
            raise SpecError(f"a job cannot run with {self.min_size} workers", "use a minimum of 1 or more")
        if self.max_size is not None and self.max_size < self.min_size:
            raise SpecError(
                f"the maximum of {self.max_size} workers is below the minimum of {self.min_size}",
                f"use a maximum of {self.min_size} or more",
            )
        if self.slots is not None and self.slots < 1:
            raise SpecError(f"a host with {self.slots} slots has no room for a worker", "use a number from 1 up")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise SpecError(f"a reset limit of {self.reset_limit} is negative", "0 allows none; omit it for no limit")
        if self.spares < 0:
            raise SpecError(f"{self.spares} is not a number of spare workers", "use a number from 0 up for --spares")

    def _check_discovery(self) -> None:
        kind, _, what = self.discovery.partition(":")
        if self.discovery not in ("", DIAL) and (kind not in DISCOVERIES or not what):
            raise SpecError(
                f"{self.discovery!r} is not a valid host discovery",
                "write script:PATH, file:PATH, dns:NAME[:SLOTS] or dial:PORT:FILE",
            )

    def _check_times(self) -> None:
        if not self.timeout > 0:
            raise SpecError(
                f"an elastic timeout of {self.timeout:g} s leaves no time to wait for workers", "use seconds above 0"
            )
        if not 0 <= self.grace < math.inf:
            raise SpecError(
                f"a grace of {self.grace:g} s is not valid", "use 0 to end workers at once, or more seconds"
            )
        if not 0 < self.preemption_interval < math.inf:
            raise SpecError(
                f"hosts cannot be checked every {self.preemption_interval:g} s",
                "use seconds above 0 for --preemption-interval",
            )
        if self.cooldown is not None and not 0 < self.cooldown[0] <= self.cooldown[1] < math.inf:
            raise SpecError(
                f"a cooldown of {self.cooldown[0]:g} to {self.cooldown[1]:g} s is not valid",
                "give the shortest and the longest time, in seconds above 0",
            )


def read_elastic_timeout(given: float | None, environment: Mapping[str, str]) -> float:
    """Return the seconds to wait for enough workers: as given, from the environment, or the default.

    Raises:
        SpecError: the variable is not a number.
    """
    if given is not None:
        return given
    for name in ("FARANDOLE_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT"):
        if text := environment.get(name):
            try:
                return float(text)
            except ValueError:
                raise SpecError(f"{name}={text} is not a number of seconds") from None
    return TIMEOUT_SECONDS
