"""The state of a job, and functions that change it.

Times are seconds on a clock that the caller of `decide` chooses and passes with every event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from farandole.control.launcher.slots.job_events import SlotAction
from farandole.control.roster import elastic, fixed
from farandole.control.roster.membership import Limits

GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL for workers that have no step to finish."""


@dataclass(frozen=True)
class SlotPolicy:
    """The user's limits, except for the size of the job, which is in the roster's `Limits`."""

    spares: int = 0
    first_size: int = 0
    """Number of slots to wait for before the first worker starts."""
    first_most: int | None = None
    """Maximum number of workers in the first world, if above the minimum size; None: as for any other world."""
    grace: float = 30.0
    """Seconds that workers have to leave when asked to."""
    blacklist: bool = False
    """Whether a host is no longer used once a worker has failed there."""
    cooldown: tuple[float, float] | None = None
    """The shortest and the longest time in seconds for which a host is not used; None: for ever."""


@dataclass(frozen=True)
class Slot:
    """A slot: room for one worker on a host."""

    index: int
    worker: int | None = None
    draining: bool = False
    """Whether its worker was told to leave."""
    left: bool = False
    """Whether the world continues without its worker, for any reason."""
    failures: int = 0
    """Number of its workers' failures in a row."""
    not_before: float = 0.0
    """The time from which it may get the next worker."""


@dataclass(frozen=True)
class Site:
    """One host."""

    label: str
    size: int
    """Number of its slots; `slots` has more while removed ones still have workers."""
    slots: tuple[Slot, ...]
    phase: str = "new"
    """new: not tried yet; reaching; ready; lost: its workers may still be alive; refused: it cannot run workers in its
        present state."""
    not_before: float = 0.0
    """The time from which it may be tried again."""
    tries: int = 0
    """Number of successive failed attempts."""
    failed_at: tuple[float, ...] = ()
    """Times of failures within the last `FLAP_SECONDS`."""
    quarantines: int = 0
    barred_until: float = 0.0
    """The end of its quarantine or blacklisting."""
    gone: bool = False
    """Whether it was removed from the hosts, and its workers are leaving."""
    notice: str = ""
    """The reason of its present preemption notice; "" if there is none."""
    noticed_at: float = 0.0
    """When it gave this notice."""
    end_at: float | None = None
    """When workers that are still leaving are ended."""

    @property
    def closed(self) -> bool:
        """Whether it may have no workers."""
        return self.gone or self.notice != ""

    @property
    def workers(self) -> tuple[int, ...]:
        """Its workers that have not ended."""
        return tuple(slot.worker for slot in self.slots if slot.worker is not None)

    @property
    def has_removed_slots(self) -> bool:
        """Whether it has slots that are only there because their workers have not left."""
        return len(self.slots) > self.size


@dataclass(frozen=True)
class Repeat:
    """Failures of one rank."""

    what: str
    times: int


@dataclass(frozen=True)
class FailureRun:
    """Failures in a row of workers that were not healthy, each of which left too few workers; see `failure_run`."""

    times: int = 0
    worker: int | None = None
    """The latest of these workers."""
    next_worker: int = 0
    """The lowest number of a worker that was started after the latest failure."""
    since: float | None = None
    """The time of the failure from which the job has the elastic timeout to get a healthy worker."""


@dataclass(frozen=True)
class Blame:
    """A worker of a job of fixed size that attributes its failure to another one, which may report the cause."""

    worker: int
    blamed: int
    until: float


@dataclass(frozen=True)
class End:
    """The end of the job, with its reason."""

    since: float
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    why: str = ""
    """The reason; "": the work is done, or the user ends the job."""
    hint: str = ""
    worker: int | None = None
    """The worker whose failure is the reason, if there is one."""
    stop_code: int | None = None
    """The exit code, if it was set from outside."""


@dataclass(frozen=True)
class JobState:
    """The whole state that decisions are based on: the roster, the hosts and the slots.

    The successor of a killed launcher continues from it.
    """

    policy: SlotPolicy
    roster: fixed.FixedState | elastic.ElasticState
    """The membership of workers in the world, and the limits of its size."""
    sites: tuple[Site, ...] = ()
    """The hosts, longest known first."""
    next_worker: int = 0
    ranks: dict[int, int] = field(default_factory=dict)
    """The latest rank of each living worker that was in a world."""
    joined_at: dict[int, float] = field(default_factory=dict)
    """When each living worker joined its first world, for those that were in one."""
    firsts: frozenset[int] = frozenset()
    """Workers that were started at the beginning, or belonged to the first world, and have not failed."""
    firsts_known: bool = False
    """Whether no more workers are added to `firsts`."""
    progressed: bool = False
    """Whether any worker has made progress."""
    repeats: dict[str, Repeat] = field(default_factory=dict)
    """Failures by rank or, for workers without one, by slot."""
    failure_run: FailureRun = FailureRun()
    asked: frozenset[int] = frozenset()
    """Workers of the latest world that were asked to leave; kept after the whole world has left."""
    early: frozenset[tuple[str, int]] = frozenset()
    """Slots, by host and index, whose worker succeeded before the first world began: they get no other worker."""
    finished: bool = False
    """Whether a worker has finished its work or, if there was no world yet, the minimum number of workers has."""
    short_since: float | None = None
    """The time since which there are too few slots."""
    blames: tuple[Blame, ...] = ()
    """Failures that workers attribute to others; only in jobs of fixed size."""
    end: End | None = None

    @property
    def elastic_roster(self) -> elastic.ElasticState:
        """The roster of an elastic job."""
        assert isinstance(self.roster, elastic.ElasticState)
        return self.roster

    @property
    def limits(self) -> Limits:
        """The limits of an elastic job's size and of its waiting times."""
        return self.elastic_roster.limits

    @property
    def world(self) -> tuple[int, ...]:
        """The workers of the latest world, by rank; some may have ended. A job of fixed size always has a world."""
        return tuple(range(self.roster.size)) if isinstance(self.roster, fixed.FixedState) else self.roster.members

    @property
    def generation(self) -> int:
        """The number of the latest world; 0 before the first of an elastic job."""
        return 1 if isinstance(self.roster, fixed.FixedState) else self.roster.generation

    @property
    def finishing(self) -> bool:
        """Whether a member of a world seems to have finished its work: certain once its process ends with exit code 0.

        Before there is a world, the end of one worker says nothing about the others, whose hosts may be slow to start.
        """
        return isinstance(self.roster, elastic.ElasticState) and self.roster.generation > 0 and self.roster.finishing

    @property
    def closing(self) -> bool:
        """Whether the job seems to be about to end, so that no worker is started."""
        return self.finished or self.finishing

    @property
    def most(self) -> int:
        """Maximum number of workers, including spares."""
        return self.limits.max_size + self.policy.spares

    @property
    def most_at_first(self) -> int:
        """Maximum number of workers before the first world begins, including spares."""
        if self.policy.first_most is None:
            return self.most
        return min(self.most, max(self.policy.first_most, self.limits.min_size) + self.policy.spares)


Step = tuple[JobState, list[SlotAction], str]
"""The result of one rule for an event: the next state, the actions, and the reason."""


def is_free(state: JobState, site: Site, slot: Slot) -> bool:
    """Return whether a slot has no worker, and may get one."""
    return slot.worker is None and slot.index < site.size and (site.label, slot.index) not in state.early


def living(state: JobState) -> dict[int, tuple[Site, Slot]]:
    """Return the places of all workers that have not ended."""
    return {slot.worker: (site, slot) for site in state.sites for slot in site.slots if slot.worker is not None}


def living_workers(state: JobState) -> Iterator[int]:
    """Yield the workers that have not ended: cheaper than `living` for a caller that needs only the first few."""
    return (slot.worker for site in state.sites for slot in site.slots if slot.worker is not None)


def workers_by_host(state: JobState) -> list[tuple[str, tuple[int, ...]]]:
    """Return the hosts that can start workers, each with its workers that have not ended."""
    return [(site.label, site.workers) for site in state.sites if site.phase == "ready"]


def places_of(state: JobState, workers: Collection[int]) -> dict[int, tuple[Site, Slot]]:
    """Return the places of those of these workers that have not ended."""
    return {
        slot.worker: (site, slot)
        for site in state.sites
        for slot in site.slots
        if slot.worker is not None and slot.worker in workers
    }


def size_of(state: JobState) -> int:
    """Return the number of workers for messages: those that have not ended or, in a job of fixed size, all."""
    return state.roster.size if isinstance(state.roster, fixed.FixedState) else len(living(state))


def at_work(state: JobState) -> dict[int, tuple[Site, Slot]]:
    """Return the places of all workers that count towards the limit.

    Workers of a lost host, which may be alive while its agent waits for a launcher, do not count: they will be in no
    world, and a host that comes back is ordered to end them.
    """
    return {worker: (site, slot) for worker, (site, slot) in living(state).items() if site.phase != "lost"}


def expected_size(state: JobState) -> int:
    """Return the number of workers that the next world will have if all goes well."""
    room = sum(site.size for site in state.sites if site.phase == "ready" and not site.closed)
    most = state.most if state.generation else state.most_at_first
    return min(room, most - state.policy.spares)


def site_of(state: JobState, label: str) -> Site | None:
    """Return a host by its name; None if it is not known."""
    return next((site for site in state.sites if site.label == label), None)


def with_site(state: JobState, label: str, **changes: object) -> JobState:
    """Return the state with a host changed."""
    return replace(
        state,
        sites=tuple(replace(site, **changes) if site.label == label else site for site in state.sites),  # type: ignore[arg-type]
    )


def with_slots(state: JobState, changes: dict[int, dict[str, object]]) -> JobState:
    """Return the state with changes to the slots of some workers."""
    if not changes:
        return state

    def after(slot: Slot) -> Slot:
        return replace(slot, **changes[slot.worker]) if slot.worker in changes else slot  # type: ignore[arg-type]

    others = changes.keys().isdisjoint
    sites = tuple(
        site if others([slot.worker for slot in site.slots]) else replace(site, slots=tuple(map(after, site.slots)))
        for site in state.sites
    )
    return replace(state, sites=sites)


def drain(state: JobState, workers: Collection[int], now: float) -> JobState:
    """Record that workers are to leave within the grace period."""
    state = replace(state, asked=state.asked | set(workers))
    return with_slots(with_deadline(state, workers, now), {worker: {"draining": True} for worker in workers})


def with_deadline(state: JobState, workers: Collection[int], now: float) -> JobState:
    """Set the end of the grace period for the hosts of these workers: those that have not left then are ended."""
    for label in {site.label for worker, (site, _) in living(state).items() if worker in workers}:
        state = with_site(state, label, end_at=now + state.policy.grace)
    return state
