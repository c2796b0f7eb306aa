"""The operator's knowledge about a job, and its decisions, as plain data.

    reconcile(observed) -> outcome

is pure, and *level-triggered*: it derives the desired state from the observed one, whatever has happened in between, so
a missed or repeated event changes nothing. Its guarantees, which explorations in the tests check:

- Counts (failures, attempts) are in the job's status, and are written before the pod that was counted is deleted. So an
    operator that is killed at any point counts nothing twice and forgets nothing.
- An outcome that was carried out, and is computed again without any change elsewhere, is empty (no hot loop).
- The end of a job is final.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from farandole.control.kubernetes.admission import Admission, Figures

Object = Mapping[str, Any]
"""One object of the API, or a part of one, in its JSON form."""


@dataclass(frozen=True, order=True)
class Ref:
    """The identity of an object: the key under which everything about it is stored."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def ref_of(obj: Object) -> Ref:
    """Return the identity of an object, whether or not it exists."""
    metadata = obj["metadata"]
    return Ref(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True)
class Problem:
    """The API server's refusal of a wanted object.

    Attributes:
        reason: one CamelCase word, which becomes the reason of a condition (see `conditions.BLOCKED_REASONS`).
        tries: number of refusals so far.
        retry_at: time of the next attempt; until then `reconcile` leaves the object out.
    """

    ref: Ref
    reason: str
    message: str
    tries: int
    retry_at: float


@dataclass(frozen=True)
class Options:
    """The operator's options that outcomes depend on.

    Attributes:
        image: the operator's own image, also that of TrainingJobs' launchers; MPIJobs' launchers get kubectl from it.
        gang_scheduler: "" (none), "volcano", or the name of a scheduler with the coscheduling plugin.
        cluster_domain: the domain of the cluster's names.
        drain_seconds: seconds that a worker keeps running after it was removed from the host list.
        deliver_kubectl: whether launchers that use kubexec get kubectl from `image`; otherwise their image has it.
    """

    image: str = "farandole/operator"
    gang_scheduler: str = ""
    cluster_domain: str = "cluster.local"
    drain_seconds: float = 30.0
    deliver_kubectl: bool = True


@dataclass(frozen=True)
class Observed:
    """All facts about one job at one time.

    Attributes:
        job: the job's object.
        children: the last known objects that the job owns: pods, and all others that were created for it.
        problems: the refusals of wanted objects.
        now: seconds since 1970.
        admission: the decision of the job's queue; None if no queue decides about it.
        figures: the state of a Queue.
    """

    job: Object
    children: Mapping[Ref, Object] = field(default_factory=lambda: MappingProxyType({}))
    problems: Mapping[Ref, Problem] = field(default_factory=lambda: MappingProxyType({}))
    now: float = 0.0
    options: Options = field(default_factory=Options)
    admission: Admission | None = None
    figures: Figures | None = None

    @property
    def metadata(self) -> Object:
        """The job's metadata."""
        metadata: Object = self.job["metadata"]
        return metadata

    @property
    def pods(self) -> tuple[Object, ...]:
        """The job's pods, by name."""
        found = [child for ref, child in self.children.items() if ref.kind == "Pod"]
        return tuple(sorted(found, key=lambda pod: str(pod["metadata"]["name"])))

    @property
    def waits_in_queue(self) -> bool:
        """Whether the job's queue does not allow it any pods now."""
        return self.admission is not None and not self.admission.workers


@dataclass(frozen=True)
class Wanted:
    """An object that must exist.

    It is created if it does not exist. If it differs from the existing one, it is applied; a pod, which cannot be
    changed, gets only its labels and annotations (those that are named here).

    Attributes:
        generate: how the operator fills a new Secret (a name in `operator.secrets.GENERATORS`), which is never read
            back or changed; "" for other objects.
    """

    obj: Object
    generate: str = ""

    @property
    def ref(self) -> Ref:
        """The identity of the object."""
        return ref_of(self.obj)


@dataclass(frozen=True)
class Deletion:
    """An object to be deleted.

    Attributes:
        uid: the uid of the object, so that a later one of the same name is never deleted.
        grace: seconds between SIGTERM and SIGKILL; None for the pod's own.
    """

    ref: Ref
    uid: str
    why: str
    grace: int | None = None


@dataclass(frozen=True)
class Note:
    """An Event about the job, as `kubectl describe` shows it."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Outcome:
    """The actions for a job, in this order: status, deletions, wanted, events, delete_job.

    Objects of a job that the outcome does not name stay as they are.

    Attributes:
        status: the job's whole status; None leaves it unchanged.
        reason: one sentence for the log about the purpose.
        again_at: when to reconcile again even if nothing happens; None for never.
        delete_job: whether to delete the job itself, with everything it owns.
    """

    reason: str
    status: Object | None = None
    wanted: tuple[Wanted, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    notes: tuple[Note, ...] = ()
    again_at: float | None = None
    delete_job: bool = False


def earliest(times: Iterable[float | None]) -> float | None:
    """Return the earliest of some times, of which some may be None (never)."""
    return min((time for time in times if time is not None), default=None)
