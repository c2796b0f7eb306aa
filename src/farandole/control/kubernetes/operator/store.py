"""The operator's knowledge about the cluster: jobs, and the objects that they own.

It is filled by watches and by the answers to the operator's own requests. These arrive independently, so an older
version of an object may arrive after a newer one, or after its deletion; such a version is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.kinds import KINDS, Kind
from farandole.control.kubernetes.model import Object, Observed, Options, Problem, Ref, ref_of

_REMEMBERED = 10_000
# Kinds of children whose deletion no watch reports.
UNWATCHED = ("Secret", "PersistentVolumeClaim")
KIND_OF_PLURAL = {kind.plural: kind for kind in KINDS}


@dataclass(frozen=True, order=True)
class JobKey:
    """The identity of a job, in the queue of work."""

    plural: str
    namespace: str
    name: str

    @property
    def kind(self) -> Kind:
        """The job's kind."""
        return KIND_OF_PLURAL[self.plural]

    @property
    def ref(self) -> Ref:
        """The identity of the job's object."""
        return Ref(self.kind.api_version, self.kind.kind, self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.namespace}/{self.name}"


@dataclass
class _Entry:
    job: dict[str, Any] | None = None
    children: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    problems: dict[Ref, Problem] = field(default_factory=dict)


class ClusterStore:
    """Jobs and the objects that they own. `changed` is called with the key of each job that has changed."""

    def __init__(self, changed: Callable[[JobKey], None]) -> None:
        self._changed = changed
        self._entries: dict[JobKey, _Entry] = {}
        self._ended: dict[str, None] = {}

    # --- jobs ---

    def jobs(self) -> Iterable[tuple[JobKey, Object]]:
        """Return all jobs."""
        return [(key, entry.job) for key, entry in self._entries.items() if entry.job is not None]

    def put_job(self, key: JobKey, job: dict[str, Any]) -> None:
        """Store a job."""
        if _uid(job) in self._ended:
            return
        entry = self._entries.setdefault(key, _Entry())
        if entry.job is not None and _older(job, entry.job):
            return
        if entry.job is not None and _uid(entry.job) != _uid(job):
            entry.problems.clear()
        if entry.job is None or _version(entry.job) != _version(job):
            entry.job = _slim(job)
            self._changed(key)

    def remove_job(self, key: JobKey, uid: str | None = None) -> None:
        """Remove a job. The objects that it owned are removed when the watches report their deletion."""
        entry = self._entries.get(key)
        if entry is None or entry.job is None or (uid is not None and _uid(entry.job) != uid):
            return
        self._end(entry.job)
        entry.job = None
        entry.problems.clear()
        entry.children = {ref: child for ref, child in entry.children.items() if ref.kind not in UNWATCHED}
        self._tidy(key, entry)
        self._changed(key)

    def keep_only_jobs(self, plural: str, present: Iterable[Object], version: str) -> None:
        """Remove jobs of a kind that are not in a list, unless they are newer than the list.

        Args:
            plural: plural of the kind.
            present: the listed jobs.
            version: version of the list. A job that was created later is not in it.
        """
        uids = {_uid(job) for job in present}
        for key, known in list(self.jobs()):
            if key.plural == plural and _uid(known) not in uids and not _earlier(version, _version(known)):
                self.remove_job(key, _uid(known))

    # --- children ---

    def put_child(self, child: dict[str, Any], quietly: bool = False) -> None:
        """Store an object that a job owns.

        Args:
            quietly: whether changes of the object are ignored, so that its job is reconciled only after its creation.
        """
        key, ref = job_of(child), ref_of(child)
        if key is None or _uid(child) in self._ended:
            return
        entry = self._entries.setdefault(key, _Entry())
        before = entry.children.get(ref)
        if before is not None and _older(child, before):
            return
        if before is None or _version(before) != _version(child):
            entry.children[ref] = _slim(child)
            entry.problems.pop(ref, None)
            if not quietly or before is None or _uid(before) != _uid(child):
                self._changed(key)

    def remove_child(self, child: Object) -> None:
        """Remove an object that a job owned."""
        key, ref = job_of(child), ref_of(child)
        self._end(child)
        entry = self._entries.get(key) if key is not None else None
        if key is None or entry is None:
            return
        before = entry.children.get(ref)
        if before is not None and _uid(before) == _uid(child):
            del entry.children[ref]
            self._tidy(key, entry)
            self._changed(key)

    def keep_only(
        self,
        api_version: str,
        kind: str,
        present: Iterable[Object],
        version: str,
        listed: Callable[[Object], bool] = lambda child: True,
    ) -> None:
        """Remove children of a kind that are not in a list, unless they are newer than the list.

        Args:
            listed: returns whether a child belongs to the objects that were listed.
        """
        uids = {_uid(child) for child in present}
        for entry in list(self._entries.values()):
            for ref, child in list(entry.children.items()):
                of_kind = (ref.api_version, ref.kind) == (api_version, kind)
                if of_kind and listed(child) and _uid(child) not in uids and not _earlier(version, _version(child)):
                    self.remove_child(child)

    # --- problems ---

    def put_problem(self, key: JobKey, problem: Problem) -> None:
        """Store the refusal of an object."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.problems[problem.ref] = problem
            self._changed(key)

    def problem(self, key: JobKey, ref: Ref) -> Problem | None:
        """Return the last refusal of an object."""
        entry = self._entries.get(key)
        return entry.problems.get(ref) if entry is not None else None

    def forget_problems(self, key: JobKey, wanted: Iterable[Ref], now: float) -> None:
        """Remove the refusals of objects that are not wanted any more."""
        entry = self._entries.get(key)
        if entry is None:
            return
        kept = set(wanted)
        for ref, problem in list(entry.problems.items()):
            if ref not in kept and problem.retry_at <= now:
                del entry.problems[ref]

    # --- for reconcile ---

    def observed(self, key: JobKey, now: float, options: Options) -> Observed | None:
        """Return the facts about a job; None if there is no such job."""
        entry = self._entries.get(key)
        if entry is None or entry.job is None:
            return None
        uid = _uid(entry.job)
        # Objects of an earlier job of this name may still exist.
        children = {ref: child for ref, child in entry.children.items() if owner_uid(child) == uid}
        return Observed(entry.job, children, dict(entry.problems), now, options)

    def _end(self, obj: Object) -> None:
        """Record that an object was deleted. Answers arrive within seconds, so the last few thousand suffice."""
        if _uid(obj):
            self._ended[_uid(obj)] = None
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _tidy(self, key: JobKey, entry: _Entry) -> None:
        if entry.job is None and not entry.children:
            self._entries.pop(key, None)


def job_of(child: Object) -> JobKey | None:
    """Return the job of an object, from its labels and its owner; None if it belongs to no job of the operator."""
    metadata = child["metadata"]
    kind = KIND_OF_PLURAL.get((metadata.get("labels") or {}).get(names.KIND_LABEL, ""))
    if kind is None:
        return None
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") == kind.kind:
            return JobKey(kind.plural, metadata["namespace"], owner["name"])
    return None


def owner_uid(child: Object) -> str:
    """Return the uid of an object's owner; "" if it has none."""
    owners = [item for item in child["metadata"].get("ownerReferences") or () if item.get("controller")]
    return str(owners[0]["uid"]) if owners else ""


def _uid(obj: Object) -> str:
    return str(obj["metadata"].get("uid", ""))


def _version(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion", ""))


def _older(new: Object, old: Object) -> bool:
    """Return whether an object is an older version of the other. Versions are increasing numbers on every server."""
    if _uid(new) != _uid(old):
        return False
    return _earlier(_version(new), _version(old))


def _earlier(first: str, second: str) -> bool:
    return first.isdecimal() and second.isdecimal() and int(first) < int(second)


def _slim(obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object without its managed fields and its last applied form: half of its size, and never needed."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    if obj.get("kind") != "Pod":
        return {**obj, "metadata": metadata}
    # The spec of an existing pod is never needed.
    return {**obj, "metadata": metadata, "spec": {"nodeName": obj.get("spec", {}).get("nodeName")}}
