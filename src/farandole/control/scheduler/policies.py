"""The tables of policies and of their parts: one row for each, with its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farandole.base.spelling import one_of
from farandole.control.scheduler.admission import conservative, easy, greedy, strict
from farandole.control.scheduler.composed import Admit, Composed, Rank, Review
from farandole.control.scheduler.errors import SchedulerError, UnknownPolicyError
from farandole.control.scheduler.order import deadline, fair_share, fcfs, priority, round_robin, sjf, srtf
from farandole.control.scheduler.placement import least_loaded, pack, spread
from farandole.control.scheduler.placement.by_node import Place
from farandole.control.scheduler.policy import Policy
from farandole.control.scheduler.room import Sizing
from farandole.control.scheduler.rules import Rules
from farandole.control.scheduler.sizing import asked, elastic


@dataclass(frozen=True)
class Order:
    """An order of jobs."""

    sentence: str
    rank: Rank
    preemptive: bool = False
    review: Review | None = None


@dataclass(frozen=True)
class Admission:
    """A choice of the jobs that get slots."""

    sentence: str
    admit: Admit


@dataclass(frozen=True)
class Placement:
    """A choice of the nodes on which a job gets its slots."""

    sentence: str
    place: Place


@dataclass(frozen=True)
class Size:
    """A choice of the number of slots of a job."""

    sentence: str
    size: Sizing
    grows: bool = False


ORDERS = {
    "fcfs": Order("first come, first served", fcfs.rank),
    "sjf": Order("shortest duration first, as given or predicted", sjf.rank),
    "srtf": Order("shortest remaining time first; suspends longer jobs", srtf.rank, preemptive=True),
    "rr": Order("round robin: time slices", round_robin.rank, preemptive=True, review=round_robin.review_at),
    "priority": Order("highest priority first; waiting raises it", priority.rank),
    "preempt": Order("highest priority first; suspends lower ones", priority.rank, preemptive=True),
    "fair": Order(
        "smallest share of its queue and user first; suspends larger shares", fair_share.rank, preemptive=True
    ),
    "edf": Order("earliest deadline first; suspends later ones", deadline.rank, preemptive=True),
}

ADMISSIONS = {
    "strict": Admission("the first job that does not fit blocks all jobs behind it", strict.admit),
    "greedy": Admission("each job that fits gets its slots", greedy.admit),
    "easy": Admission("backfill that does not delay the first waiting job", easy.admit),
    "conservative": Admission("backfill that delays no waiting job", conservative.admit),
}

IN_ORDER = {"strict": ADMISSIONS["strict"]}
"""The only admission that the adaptive policy can have; without it, later jobs may run while an earlier one waits."""

PLACEMENTS = {
    "pack": Placement("on as few nodes as possible, the fullest first", pack.place),
    "spread": Placement("over as many nodes as possible", spread.place),
    "least-loaded": Placement("on the nodes with the largest free fraction", least_loaded.place),
}

SIZINGS = {
    "asked": Size("the number of slots that the user requested", asked.size),
    "elastic": Size("the fewest slots it can run with, and an equal share of the rest", elastic.size, grows=True),
}


@dataclass(frozen=True)
class Named:
    """A policy with a name of its own."""

    sentence: str
    parts: str = ""
    """The parts that it is composed of; "": it is not composed."""


POLICIES: Mapping[str, Named] = {
    "fcfs": Named("first come, first served", "fcfs+strict"),
    "sjf": Named("shortest job first", "sjf+greedy"),
    "srtf": Named("shortest remaining time first, with suspension", "srtf+greedy"),
    "rr": Named("round robin: time slices, with suspension", "rr+greedy"),
    "priority": Named("highest priority first, with ageing", "priority+strict"),
    "preempt": Named("highest priority first, with ageing and suspension", "preempt+greedy"),
    "easy": Named("first come, first served, with EASY backfill", "fcfs+easy"),
    "conservative": Named("first come, first served, with conservative backfill", "fcfs+conservative"),
    "fair": Named("fair share of queues and users, with quotas, borrowing and reclaim", "fair+greedy"),
    "edf": Named("earliest deadline first, with suspension", "edf+greedy"),
    "spread": Named("first come, first served, over as many nodes as possible", "fcfs+strict+spread"),
    "least-loaded": Named("first come, first served, on the least loaded nodes", "fcfs+strict+least-loaded"),
    "equal": Named("every job as soon as it fits, all of equal sizes", "fcfs+greedy+elastic"),
    "adaptive": Named("all jobs sized together by their predicted progress"),
}


DEFAULT_POLICY = "priority+easy+elastic"
"""The policy of a queue whose settings name none."""


def make_policy(name: str, rules: Rules | None = None) -> Policy:
    """Return a policy by its name, or composed of parts: `sjf+easy+spread`, `adaptive+spread`.

    The default parts are `fcfs`, `strict` (`greedy` for preemptive orders), `pack` and `asked`.

    Raises:
        UnknownPolicyError: there is no such policy or part.
        SchedulerError: the policy needs a package that is not installed.
    """
    rules = rules or Rules()
    named = POLICIES.get(name)
    words = (named.parts or name if named is not None else name).split("+")
    tables: tuple[Mapping[str, object], ...] = (ORDERS, ADMISSIONS, PLACEMENTS, SIZINGS)
    adaptive = words[0] == "adaptive"
    for word in words[adaptive:]:
        if not any(word in table for table in ((PLACEMENTS, IN_ORDER) if adaptive else tables)):
            raise _unknown(name, word, tables)
    place = PLACEMENTS[_only(name, words, PLACEMENTS, "pack")].place
    if adaptive:
        return _adaptive(rules, place, in_order="strict" in words)
    order = ORDERS[_only(name, words, ORDERS, "fcfs")]
    size = SIZINGS[_only(name, words, SIZINGS, "asked")]
    return Composed(
        rank=order.rank,
        admit=ADMISSIONS[_only(name, words, ADMISSIONS, "greedy" if order.preemptive else "strict")].admit,
        place=place,
        size=size.size,
        preemptive=order.preemptive,
        grows=size.grows,
        review=order.review,
        rules=rules,
    )


def _adaptive(rules: Rules, place: Place, in_order: bool) -> Policy:
    # Only this policy needs numpy and scipy.
    try:
        from farandole.control.scheduler.adaptive.policy import Adaptive
    except ModuleNotFoundError as error:
        raise SchedulerError(
            f"policy adaptive needs {error.name}, which is not installed", "pip install 'farandole[scheduler]'"
        ) from None
    return Adaptive(rules, place=place, in_order=in_order)


def _only(name: str, words: list[str], table: Mapping[str, object], default: str) -> str:
    """Return the word that is in a table, or the default."""
    found = [word for word in words if word in table]
    if len(found) > 1:
        raise UnknownPolicyError(f"policy {name} has both {found[0]} and {found[1]}", "name one part of each kind")
    return found[0] if found else default


def _unknown(name: str, word: str, tables: tuple[Mapping[str, object], ...]) -> UnknownPolicyError:
    known = [*POLICIES, *(part for table in tables for part in table if part not in POLICIES)]
    said = f"policy {name}: {word} is unknown" if word != name else f"there is no policy {name}"
    return UnknownPolicyError(said, one_of(word, known))


def describe() -> list[tuple[str, str]]:
    """Return the name and description of each policy and each part, for help and documents."""
    rows = [(name, row.sentence) for name, row in POLICIES.items()]
    parts: list[Mapping[str, Order] | Mapping[str, Admission] | Mapping[str, Placement] | Mapping[str, Size]]
    parts = [ORDERS, ADMISSIONS, PLACEMENTS, SIZINGS]
    return rows + [(f"+{name}", row.sentence) for table in parts for name, row in table.items()]
