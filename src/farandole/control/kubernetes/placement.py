"""Placement of pods for all kinds of jobs: deletions, refusals, and reasons why pods do not start. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farandole.control.kubernetes import pod_state
from farandole.control.kubernetes.model import Deletion, Object, Observed, Wanted, earliest, ref_of


@dataclass(frozen=True)
class Placement:
    """Objects to create and to delete, the time of the next reconciliation, and a sentence for the log."""

    reason: str
    wanted: tuple[Wanted, ...]
    deletions: tuple[Deletion, ...]
    again_at: float | None


def deletion(obj: Object, why: str, grace: int | None = None) -> Deletion:
    """Return the deletion of an object, which never affects a later object of the same name."""
    return Deletion(ref_of(obj), str(obj["metadata"]["uid"]), why, grace)


def deletions(objects: Iterable[Object], why: str) -> list[Deletion]:
    """Return the deletions of objects, except those that are already being deleted."""
    return [deletion(each, why) for each in objects if not pod_state.terminating(each)]


def not_refused(observed: Observed, wanted: Iterable[Wanted]) -> tuple[list[Wanted], float | None]:
    """Return the wanted objects except those that were refused recently, and when these may be tried again."""
    kept, later = [], []
    for item in wanted:
        problem = observed.problems.get(item.ref)
        if problem is None or problem.retry_at <= observed.now:
            kept.append(item)
        else:
            later.append(problem.retry_at)
    return kept, earliest(later)


def hindrance(observed: Observed, patience: float) -> tuple[str, str] | None:
    """Return why a job does not get its pods (a word and a sentence); None if nothing prevents it.

    Args:
        patience: seconds that pods have to start: a scheduler may not have handled a new pod yet, and the first attempt
            to pull an image may fail.
    """
    for _, problem in sorted(observed.problems.items()):
        return problem.reason, f"{problem.ref}: {problem.message}"[:1000]
    old = [pod for pod in observed.pods if observed.now >= pod_state.created_at(pod) + patience]
    return next((found for pod in old if (found := pod_state.hindrance(pod)) is not None), None)


def hindrance_due(observed: Observed, patience: float) -> float | None:
    """Return when a blocked pod will have been blocked for long enough to report it."""
    hindered = [pod for pod in observed.pods if pod_state.hindrance(pod) is not None]
    due = [pod_state.created_at(pod) + patience for pod in hindered]
    return earliest(at for at in due if at > observed.now)
