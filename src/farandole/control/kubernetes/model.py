"""What the operator knows of a job, and what it wants: plain data, without a connection to anything.

    reconcile(observed) -> outcome

is pure, and *level-triggered*: it says what should be, from what is there, whatever has happened in between, so an
event that was missed or came twice changes nothing. Its guarantees, which explorations in the tests hold it to:

- What is counted (failures, attempts) is in the job's status, and is written before the pod that it was read from is
  deleted. So an operator that is killed anywhere counts nothing twice and forgets nothing.
- An outcome that is carried out, and reconciled again without any change elsewhere, is empty (no hot loop).
- A job that has ended stays as it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from farandole.control.kubernetes.admission import Admission, Figures

Object = Mapping[str, Any]
"""One object of the API, or a part of one, as it is in JSON."""


@dataclass(frozen=True, order=True)
class Ref:
    """Where an object is: the key of everything that is kept about objects."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def ref_of(obj: Object) -> Ref:
    """Return where an object is, or is to be."""
    metadata = obj["metadata"]
    return Ref(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True)
class Problem:
    """The API server refused an object that was wanted.

    Attributes:
        reason: one CamelCase word, which becomes the reason of a condition (see `conditions.BLOCKED_REASONS`).
        tries: how often it has been refused.
        retry_at: when it may be tried again; until then `reconcile` does not want it.
    """

    ref: Ref
    reason: str
    message: str
    tries: int
    retry_at: float


@dataclass(frozen=True)
class Options:
    """What an operator was started with that outcomes depend on.

    Attributes:
        image: the operator's own image, which launchers of ours run, and from which MPIJobs' launchers get kubectl.
        gang_scheduler: "" (none), "volcano", or the name of a scheduler with the coscheduling plugin.
        cluster_domain: what the cluster's names end with.
        drain_seconds: how long a worker that is to go is left running after it has left the host list.
        deliver_kubectl: whether launchers that use kubexec get kubectl from `image` (else it is in their own image).
    """

    image: str = "farandole/operator"
    gang_scheduler: str = ""
    cluster_domain: str = "cluster.local"
    drain_seconds: float = 30.0
    deliver_kubectl: bool = True


@dataclass(frozen=True)
class Observed:
    """All that is known of one job at one moment.

    Attributes:
        job: the job's object.
        children: what the job owns, as it was last seen: pods, and whatever else was made for it.
        problems: what was wanted and refused.
        now: seconds since 1970.
        admission: what the job's queue lets it have; None: no queue decides about it.
        figures: of a Queue.
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


@dataclass(frozen=True)
class Wanted:
    """An object that is to be.

    It is created if it is not there. If it differs from what is there, it is applied; a pod, which cannot be changed,
    gets its labels and annotations (only those that are named here), and nothing else.

    Attributes:
        generate: how the operator fills a new Secret (a name in `operator.secrets.GENERATORS`), which is never read
            back or changed; "" for everything else.
    """

    obj: Object
    generate: str = ""

    @property
    def ref(self) -> Ref:
        """Where it is to be."""
        return ref_of(self.obj)


@dataclass(frozen=True)
class Deletion:
    """An object that is to go.

    Attributes:
        uid: which one of that name, so that its successor is never meant.
        grace: seconds between SIGTERM and SIGKILL; None is what the pod says.
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
    """What is to be done for a job, in this order: status, deletions, wanted, events, delete_job.

    Whatever a job owns and the outcome does not name is left alone.

    Attributes:
        status: the job's whole status; None leaves it as it is.
        reason: one sentence for the log: what this outcome is for.
        again_at: when to reconcile again even if nothing happens; None is never.
        delete_job: the job itself is to go, with everything it owns.
    """

    reason: str
    status: Object | None = None
    wanted: tuple[Wanted, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    notes: tuple[Note, ...] = ()
    again_at: float | None = None
    delete_job: bool = False


def earliest(times: Iterable[float | None]) -> float | None:
    """Return the first of some moments, of which some may be never (None)."""
    return min((time for time in times if time is not None), default=None)
