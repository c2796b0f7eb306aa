"""Carries out outcomes in the cluster.

The order is part of the guarantees (see `kubernetes.model`): the status, which contains the failures, is written before
a counted pod is deleted. If anything fails, the rest is skipped, and the job is reconciled again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import children, names, pod_state, times
from farandole.control.kubernetes.api.client import Api
from farandole.control.kubernetes.api.errors import ApiError, Conflict, NoSuchKind, NotFound, ObjectRefused, reason_of
from farandole.control.kubernetes.model import Deletion, Note, Object, Observed, Outcome, Problem, Ref, Wanted
from farandole.control.kubernetes.operator import secrets as secret_data
from farandole.control.kubernetes.operator.backoff import rest
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey, owner_uid

log = logging.getLogger("farandole.operator")

# Number of pods of one job that are created at the same time.
_AT_ONCE = 8
_REMEMBERED = 10_000
_FIRST_RETRY, _LONGEST_RETRY = 5.0, 300.0
# Secrets cannot be watched without the right to read them. While a pod waits to start, as it does if its Secret was
# deleted, its creation is tried this often (in seconds): the API server refuses it if the Secret exists.
SECRET_SECONDS = 60.0
# Seconds within which a pod that is bound to a node starts, unless it is blocked.
START_SECONDS = 10.0


class NotLeading(Exception):
    """Another operator may have taken over, so this one must not write any more."""


@dataclass
class Executor:
    """Carries outcomes out.

    Attributes:
        may_write: called before every request that changes something; returns whether this operator leads.
        clock: returns the time in seconds since 1970.
        tried: when each Secret was last created, or found to exist.
    """

    api: Api
    store: ClusterStore
    may_write: Callable[[], bool]
    clock: Callable[[], float]
    identity: str = ""
    tried: dict[Ref, float] = field(default_factory=dict)

    def recheck_after(self, observed: Observed) -> float | None:
        """Return the seconds after which a job is reconciled again because pods wait to start; None if no pod waits."""
        return START_SECONDS if any(pod_state.waits_to_start(pod) for pod in observed.pods) else None

    async def carry_out(self, key: JobKey, observed: Observed, outcome: Outcome) -> int:
        """Carry out an outcome, and return the number of requests."""
        requests = 0
        if outcome.status is not None:
            await self._write_status(key, observed.job, outcome.status)
            requests += 1
        for note in outcome.notes:
            await self._write_event(key, observed.job, note)
        for deletion in outcome.deletions:
            await self._delete(deletion, observed.children.get(deletion.ref))
        requests += len(outcome.notes) + len(outcome.deletions)
        requests += await self._make(key, observed, outcome.wanted)
        if outcome.delete_job:
            await self._delete_job(key, observed.job)
            requests += 1
        self.store.forget_problems(key, (item.ref for item in outcome.wanted), self.clock())
        return requests

    # --- the job's own object ---

    async def _write_status(self, key: JobKey, job: Object, status: Object) -> None:
        self._check()
        try:
            answer = await self.api.replace({**job, "status": status}, "status")
        except NoSuchKind:
            raise  # This error does not concern the job.
        except NotFound:
            # Its end was not reported, as happens when a watch is cut.
            self.store.remove_job(key, job["metadata"]["uid"])
            raise
        except Conflict:
            self.store.put_job(key, await self.api.get(key.ref))
            raise
        self.store.put_job(key, answer)

    async def _delete_job(self, key: JobKey, job: Object) -> None:
        self._check()
        try:
            await self.api.delete(key.ref, job["metadata"]["uid"])
        except NoSuchKind:
            raise
        except (NotFound, Conflict):
            self.store.remove_job(key, job["metadata"]["uid"])

    async def _write_event(self, key: JobKey, job: Object, note: Note) -> None:
        """Write an Event; if that fails, other actions are still carried out."""
        self._check()
        now = times.to_text(self.clock())
        metadata = job["metadata"]
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": key.kind.api_version,
                "kind": key.kind.kind,
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "type": "Warning" if note.warning else "Normal",
            "reason": note.reason,
            "message": note.message[:1024],
            "source": {"component": names.OPERATOR},
            "reportingComponent": f"{names.GROUP}/{names.OPERATOR}",
            "reportingInstance": self.identity or names.OPERATOR,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.api.create(event)
        except ApiError as error:
            log.warning("%s: the event %s could not be written: %s", key, note.reason, error)

    # --- what it owns ---

    async def _delete(self, deletion: Deletion, child: Object | None) -> None:
        self._check()
        try:
            answer = await self.api.delete(deletion.ref, deletion.uid, deletion.grace)
        except NoSuchKind:
            raise
        except (NotFound, Conflict):
            # It is gone, or replaced by another one of its name, which the watch will report.
            if child is not None:
                self.store.remove_child(child)
            return
        if answer.get("kind") == deletion.ref.kind:
            self.store.put_child(answer)
        elif child is not None:
            self.store.remove_child(child)

    async def _make(self, key: JobKey, observed: Observed, wanted: tuple[Wanted, ...]) -> int:
        todo = [
            item
            for item in wanted
            if _differs(item, observed.children.get(item.ref)) or self._may_be_lost(item, observed)
        ]
        for item in todo:
            if item.ref.kind != "Pod":
                await self._make_one(key, observed, item)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def limited(item: Wanted) -> None:
            async with limit:
                await self._make_one(key, observed, item)

        pods = [limited(item) for item in todo if item.ref.kind == "Pod"]
        failed = [error for error in await asyncio.gather(*pods, return_exceptions=True) if error is not None]
        if failed:
            raise failed[0]
        return len(todo)

    def _may_be_lost(self, wanted: Wanted, observed: Observed) -> bool:
        """Return whether to check that a created Secret still exists: a pod waits, and there was no recent check."""
        now = self.clock()
        if not wanted.generate or now - self.tried.get(wanted.ref, 0.0) < SECRET_SECONDS:
            return False
        pods = [pod for pod in observed.pods if pod_state.waits_to_start(pod)]
        return any(now - pod_state.created_at(pod) >= START_SECONDS for pod in pods)

    async def _make_one(self, key: JobKey, observed: Observed, wanted: Wanted) -> None:
        self._check()
        child = observed.children.get(wanted.ref)
        if wanted.generate:
            self._remember_try(wanted.ref)
        try:
            if child is None or wanted.generate:
                answer = await self.api.create(_complete(wanted))
            elif wanted.ref.kind == "Pod":
                answer = await self.api.merge(wanted.ref, {"metadata": _marks(wanted.obj)})
            else:
                answer = await self.api.apply(_marked(wanted.obj))
        except Conflict:
            await self._handle_existing(key, observed, wanted)
        except NotFound as error:
            if child is not None:
                self.store.remove_child(child)
            else:
                self._refused(key, wanted.ref, error)
        except ObjectRefused as error:
            self._refused(key, wanted.ref, error)
        else:
            if child is not None and wanted.generate:
                log.warning("%s: %s was gone, and is made again", key, wanted.ref)
            self.store.put_child({"apiVersion": wanted.ref.api_version, "kind": wanted.ref.kind, **answer})

    async def _handle_existing(self, key: JobKey, observed: Observed, wanted: Wanted) -> None:
        """Handle that an object of that name exists already: the job's own, not known until now, or another owner's."""
        ref = wanted.ref
        if wanted.generate:
            # Its name contains the job's uid (see `children.secret_name`), and Secrets are not read.
            if ref not in observed.children:
                self.store.put_child(dict(wanted.obj))
            return
        there = {"apiVersion": ref.api_version, "kind": ref.kind, **await self.api.get(ref)}
        if owner_uid(there) == observed.metadata["uid"]:
            self.store.put_child(there)
            return
        owners = there["metadata"].get("ownerReferences") or ()
        whose = f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else "nothing"
        self._refused(key, ref, Conflict(409, f"it exists already, and belongs to {whose}"))

    def _remember_try(self, ref: Ref) -> None:
        self.tried.pop(ref, None)
        self.tried[ref] = self.clock()
        while len(self.tried) > _REMEMBERED:
            del self.tried[next(iter(self.tried))]

    def _refused(self, key: JobKey, ref: Ref, error: ApiError) -> None:
        before = self.store.problem(key, ref)
        tries = before.tries + 1 if before is not None else 1
        delay = rest(tries - 1, _FIRST_RETRY, _LONGEST_RETRY)
        problem = Problem(ref, reason_of(error), str(error), tries, self.clock() + delay)
        log.warning("%s: %s was refused (%s): %s; again in %g s", key, ref, problem.reason, error, delay)
        self.store.put_problem(key, problem)

    def _check(self) -> None:
        if not self.may_write():
            raise NotLeading


def _differs(wanted: Wanted, child: Object | None) -> bool:
    if child is None:
        return True
    if wanted.generate:
        return False
    if wanted.ref.kind == "Pod":
        marks, metadata = _marks(wanted.obj), child["metadata"]
        return any(not (metadata.get(name) or {}).items() >= values.items() for name, values in marks.items())
    if "data" in wanted.obj and child.get("data") != wanted.obj["data"]:
        return True
    annotations = child["metadata"].get("annotations") or {}
    return annotations.get(names.HASH_ANNOTATION) != children.digest(wanted.obj)


def _marks(obj: Object) -> dict[str, Any]:
    found = {name: obj["metadata"].get(name) for name in ("labels", "annotations")}
    return {name: values for name, values in found.items() if values}


def _marked(obj: Object) -> dict[str, Any]:
    """Return an object with the digest of its wanted form."""
    metadata = obj["metadata"]
    annotations = {**metadata.get("annotations", {}), names.HASH_ANNOTATION: children.digest(obj)}
    return {**obj, "metadata": {**metadata, "annotations": annotations}}


def _complete(wanted: Wanted) -> dict[str, Any]:
    if wanted.generate:
        return {**wanted.obj, "data": secret_data.data(wanted.generate)}
    return dict(wanted.obj) if wanted.ref.kind == "Pod" else _marked(wanted.obj)
