"""What is known of the slots of an elastic job, and how one state is made from another.

Times are seconds on a clock that the caller of `decide` chooses, and gives with every event.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from farandole.control.launcher.slots.slot_events import Action

MOST_WORKERS = 1 << 16


@dataclass(frozen=True)
class SlotPolicy:
    """What the user allows."""

    min_size: int
    max_size: int | None
    spares: int = 0
    first_size: int = 0
    """So many slots are worth waiting for before the first worker starts."""
    first_most: int | None = None
    """The first world has no more workers than that, or `min_size`; None: as many as any other."""
    grace: float = 30.0
    """Seconds in which workers that are to leave can do so."""
    timeout: float = 600.0
    """Seconds that there may be too few slots."""
    blacklist: bool = False
    """Whether a host is not used any more once a worker failed there."""
    cooldown: tuple[float, float] | None = None
    """For how long, at least and at most; None: for good."""

    @property
    def most(self) -> float:
        """Workers that there may be, with the spares."""
        return math.inf if self.max_size is None else self.max_size + self.spares

    @property
    def most_at_first(self) -> float:
        """Workers that there may be before the first world begins, with the spares."""
        if self.first_most is None:
            return self.most
        return min(self.most, max(self.first_most, self.min_size) + self.spares)


@dataclass(frozen=True)
class Slot:
    """Room for one worker on a host."""

    index: int
    worker: int | None = None
    draining: bool = False
    """Its worker was told to leave."""
    left: bool = False
    """The world goes on without its worker, whatever the reason."""
    failures: int = 0
    """Of its workers, in a row."""
    not_before: float = 0.0
    """When it may have the next worker."""


@dataclass(frozen=True)
class Site:
    """One host."""

    label: str
    size: int
    """Slots that it has; there are more in `slots` while those that it had before still have workers."""
    slots: tuple[Slot, ...]
    phase: str = "new"
    """new: not tried; reaching; ready; lost: what ran there may still live; refused: it cannot take part as it is."""
    not_before: float = 0.0
    """When it may be tried to reach."""
    tries: int = 0
    """In a row, that failed."""
    failed_at: tuple[float, ...] = ()
    """Failures within the last `FLAP_SECONDS`."""
    quarantines: int = 0
    barred_until: float = 0.0
    """Quarantined, or blacklisted, until then."""
    gone: bool = False
    """It is not one of the hosts any more, and its workers are leaving."""
    notice: str = ""
    """Why it is about to be taken away, as it says itself; "" when it is not."""
    noticed_at: float = 0.0
    """When it said so."""
    end_at: float | None = None
    """When workers that are still leaving are ended."""

    @property
    def closed(self) -> bool:
        """Whether it is to have no workers."""
        return self.gone or self.notice != ""


@dataclass(frozen=True)
class Repeat:
    """Failures of one rank."""

    what: str
    times: int


@dataclass(frozen=True)
class State:
    """All that the policy knows: each of its many fields is one fact that events change."""

    policy: SlotPolicy
    sites: tuple[Site, ...] = ()
    """The one that is known longest first."""
    next_worker: int = 0
    worlds: int = 0
    members: tuple[int, ...] = ()
    """Workers of the latest world, by rank; some may have ended."""
    ranks: dict[int, int] = field(default_factory=dict)
    """The latest rank of each living worker that was in a world."""
    joined_at: dict[int, float] = field(default_factory=dict)
    """When each living worker came into its first world, of those that were in one."""
    firsts: frozenset[int] = frozenset()
    """Workers that were started first, or of the first world, and have not failed."""
    firsts_known: bool = False
    """No worker is added to them any more."""
    progressed: bool = False
    """Some worker has got somewhere."""
    repeats: dict[str, Repeat] = field(default_factory=dict)
    """By what failed: a rank or, before there is one, a slot."""
    asked: frozenset[int] = frozenset()
    """Workers of the latest world that were asked to leave; when none of it is left, they stay known."""
    finishing: bool = False
    """A worker has done all there was to do, as far as is known: its process has yet to end well."""
    finished: bool = False
    """A worker has done all there was to do."""
    short_since: float | None = None
    """Since when there are too few slots."""
    ended: bool = False

    @property
    def closing(self) -> bool:
        """Whether the job is about to end, as far as is known: no worker is started."""
        return self.finished or self.finishing


Step = tuple[State, list[Action], str]
"""What one rule makes of an event: the next state, what to do, and why."""


def most_members(max_size: int | None) -> int:
    """Return how many workers a world may have, as a number."""
    return MOST_WORKERS if max_size is None else max_size


def living(state: State) -> dict[int, tuple[Site, Slot]]:
    """Return where each worker is that has not ended."""
    return {slot.worker: (site, slot) for site in state.sites for slot in site.slots if slot.worker is not None}


def at_work(state: State) -> dict[int, tuple[Site, Slot]]:
    """Return where each worker is that counts towards how many there may be.

    Those of a host that is lost do not, which may live for as long as an agent waits for a launcher: no world has them
    any more, and a host that comes back is told to end them.
    """
    return {worker: (site, slot) for worker, (site, slot) in living(state).items() if site.phase != "lost"}


def expected_size(state: State) -> int:
    """Return how many workers the next world will have if all goes well."""
    room = sum(site.size for site in state.sites if site.phase == "ready" and not site.closed)
    policy = state.policy
    most = policy.most if state.worlds else policy.most_at_first
    return int(min(room, most_members(policy.max_size), most - policy.spares))


def site_of(state: State, label: str) -> Site | None:
    """Return a host by its name; None when it is not known."""
    return next((site for site in state.sites if site.label == label), None)


def with_site(state: State, label: str, **changes: object) -> State:
    """Change a host."""
    return replace(
        state,
        sites=tuple(replace(site, **changes) if site.label == label else site for site in state.sites),  # type: ignore[arg-type]
    )


def with_slots(state: State, changes: dict[int, dict[str, object]]) -> State:
    """Change slots, by the workers that are in them."""
    if not changes:
        return state
    sites = tuple(
        replace(
            site,
            slots=tuple(
                replace(slot, **changes[slot.worker]) if slot.worker in changes else slot  # type: ignore[arg-type]
                for slot in site.slots
            ),
        )
        for site in state.sites
    )
    return replace(state, sites=sites)


def drain(state: State, workers: Collection[int], now: float) -> State:
    """Record that workers are to leave, within the grace period."""
    state = replace(state, asked=state.asked | set(workers))
    return with_slots(with_deadline(state, workers, now), {worker: {"draining": True} for worker in workers})


def with_deadline(state: State, workers: Collection[int], now: float) -> State:
    """Give the hosts of these workers the grace period, after which those that are still leaving are ended."""
    for label in {site.label for worker, (site, _) in living(state).items() if worker in workers}:
        state = with_site(state, label, end_at=now + state.policy.grace)
    return state
