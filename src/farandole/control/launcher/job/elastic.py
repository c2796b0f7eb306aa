"""What the user wants of a job whose workers come and go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from farandole.errors import SpecError

TIMEOUT_SECONDS = 600.0
# --elastic-timeout may be without an end; this is longer than anybody waits, and than some clocks can be set.
MOST_SEARCH_SECONDS = 1e6
GRACE_SECONDS = 30.0
# Clouds tell 30 s to 2 minutes before, and recommend to ask so often.
PREEMPTION_SECONDS = 5.0
DISCOVERIES = ("script", "file", "dns", "dial")


@dataclass(frozen=True)
class Elastic:
    """Between how many workers a job goes on, where it finds hosts for them, and when it gives up.

    Raises:
        SpecError: a value that no job can have.
    """

    min_size: int
    """With fewer workers the job waits."""
    max_size: int | None
    """None: as many as there are slots."""
    discovery: str = ""
    """`script:PATH`, `file:PATH`, `dns:NAME[:SLOTS]`, or `dial:PORT:FILE`, where hosts dial that hold the secret in a
    file; "": the hosts of the spec, no others."""
    slots: int | None = None
    """For hosts whose discovery names none."""
    timeout: float = TIMEOUT_SECONDS
    """Seconds to wait for min_size workers."""
    reset_limit: int | None = None
    """How many worlds may follow the first; None: no end."""
    cooldown: tuple[float, float] | None = None
    """Horovod's range: the shortest and the longest time, in seconds, that a slot which failed stays unused. None: our
    own policy."""
    blacklist: bool = False
    """Whether a host with a failed worker is not used any more, for good or for the time of `cooldown`, as Horovod has
    it."""
    spares: int = 0
    """How many workers are kept beside a full world, started and connected."""
    grace: float = GRACE_SECONDS
    """A worker that is to leave gets so many seconds."""
    preemption_file: str = ""
    """A host on which there is such a file is about to be taken away; "": it is not looked for."""
    preemption_command: str = ""
    """A host on which this command ends with code 0 is about to be taken away; "": none is run."""
    preemption_interval: float = PREEMPTION_SECONDS
    """Seconds between two looks at a host."""
    fills_at_once: bool = False
    """Whether every slot gets a worker from the beginning, up to `max_size`; the spec's `num_proc` is then how many
    slots are worth waiting for, as in Horovod. Otherwise the first world has `num_proc` workers, and others follow."""

    def __post_init__(self) -> None:
        self._check_sizes()
        self._check_discovery()
        self._check_times()

    @property
    def hosts_dial(self) -> bool:
        """Whether hosts come to the launcher by themselves, and outlive it."""
        return self.discovery.startswith("dial:")

    @property
    def search_timeout(self) -> float:
        """Seconds for which workers go on without a launcher, and look for the roster of another one."""
        return min(self.timeout, MOST_SEARCH_SECONDS)

    def check_first_size(self, num_proc: int) -> None:
        """See that the first world may have so many workers.

        Raises:
            SpecError: it may not.
        """
        if num_proc < self.min_size or (self.max_size is not None and num_proc > self.max_size):
            most = "" if self.max_size is None else f" and at most {self.max_size}"
            raise SpecError(
                f"-np {num_proc} is outside the job's limits: at least {self.min_size}{most} workers",
                "-np lies between --min-np and --max-np",
            )

    def _check_sizes(self) -> None:
        if self.min_size < 1:
            raise SpecError(f"a job cannot go on with {self.min_size} workers", "--min-np takes a number from 1 on")
        if self.max_size is not None and self.max_size < self.min_size:
            raise SpecError(
                f"at most {self.max_size} workers are fewer than at least {self.min_size}",
                "--max-np takes a number from --min-np on",
            )
        if self.slots is not None and self.slots < 1:
            raise SpecError(f"a host with {self.slots} slots has no room for a worker", "give a number from 1 on")
        if self.reset_limit is not None and self.reset_limit < 0:
            raise SpecError(
                f"a reset limit of {self.reset_limit} is negative", "0 allows none; leave it out for no end"
            )
        if self.spares < 0:
            raise SpecError(f"{self.spares} spare workers cannot be started", "--spares takes a number from 0 on")

    def _check_discovery(self) -> None:
        kind, _, what = self.discovery.partition(":")
        if self.discovery and (kind not in DISCOVERIES or not what):
            raise SpecError(
                f"hosts cannot be found by {self.discovery!r}",
                "write script:PATH, file:PATH, dns:NAME[:SLOTS] or dial:PORT:FILE",
            )

    def _check_times(self) -> None:
        if not self.timeout > 0:
            raise SpecError(
                f"{self.timeout:g} s leave no time to wait for workers", "--elastic-timeout takes seconds above 0"
            )
        if not 0 <= self.grace < math.inf:
            raise SpecError(f"{self.grace:g} s is no time in which a worker can leave", "0 ends it at once")
        if not 0 < self.preemption_interval < math.inf:
            raise SpecError(
                f"hosts cannot be looked at every {self.preemption_interval:g} s",
                "--preemption-interval takes seconds above 0",
            )
        if self.cooldown is not None and not 0 < self.cooldown[0] <= self.cooldown[1] < math.inf:
            raise SpecError(
                f"a failed slot cannot rest between {self.cooldown[0]:g} and {self.cooldown[1]:g} s",
                "--blacklist-cooldown-range takes the shortest and the longest time, in seconds above 0",
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
