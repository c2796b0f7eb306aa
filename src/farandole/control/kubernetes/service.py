"""The place `kubernetes`: jobs are TrainingJobs in kubectl's current namespace.

Its user needs rights on TrainingJobs, on ConfigMaps if code is sent with jobs, and on pods and their logs to show
output.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml  # type: ignore[import-untyped]
from lightkube.core.exceptions import ConfigError

from farandole.base.wire.os_text import shown
from farandole.control.jobs import refusals
from farandole.control.jobs.errors import BadSpec, JobError, NotAllowed, Refused, UnknownJob, Unreachable
from farandole.control.jobs.log_lines import of_rank
from farandole.control.jobs.spec import JobSpec, to_dict
from farandole.control.jobs.status import JobStatus
from farandole.control.kubernetes import children, code, names, pod_state
from farandole.control.kubernetes.api.blocking import BlockingApi
from farandole.control.kubernetes.api.client import collection, default_config
from farandole.control.kubernetes.api.errors import (
    ApiError,
    Conflict,
    NoSuchKind,
    NotFound,
    NotSent,
    Silent,
    Unavailable,
)
from farandole.control.kubernetes.kinds import TRAINING_JOB
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.reading import lines_of_failures, status_of
from farandole.control.kubernetes.training_job.job_spec import KUBERNETES_KEYS

NAMESPACE_VARIABLE, IMAGE_VARIABLE = "FARANDOLE_NAMESPACE", "FARANDOLE_IMAGE"
PLACE = "kubernetes"
_SECONDS = 15.0
_POLL_SECONDS = 0.5
# Seconds for which a creating request whose answer is lost is repeated.
_RETRY_SECONDS = 10.0
# Seconds without a line after which the job, and the API server, are checked.
_QUIET_SECONDS = 5.0
# Number of breaks of a log's connection, without another line, after which it is given up.
_MOST_BREAKS = 5
_MERGE = "application/merge-patch+json"
_NO_CLUSTER = "check KUBECONFIG, and whether `kubectl get pods` answers"


class NoCluster:
    """A stand-in for the connection if no cluster is configured. Previews of jobs need none.

    Args:
        why: the reason why there is none, for the error of everything else.
    """

    def __init__(self, why: str) -> None:
        self._why = why

    def close(self) -> None:
        """Do nothing."""

    def send(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `Unreachable`."""
        raise Unreachable(self._why, _NO_CLUSTER)

    lines = send


class KubernetesJobs:
    """A `JobService` of one namespace.

    Args:
        api: the connection to the API server.
        namespace: the namespace of the jobs.
        image: default image of jobs; "": jobs must name one.
    """

    def __init__(self, api: BlockingApi | NoCluster, namespace: str, image: str = "") -> None:
        self._api = api
        # Handles of jobs are not closed: the connection ends with its owner.
        weakref.finalize(self, api.close)
        self._namespace = namespace
        self._image = image
        self._jobs = collection(TRAINING_JOB.api_version, TRAINING_JOB.plural, namespace)
        self._pods, self._events, self._configs = (
            collection("v1", plural, namespace) for plural in ("pods", "events", "configmaps")
        )

    def submit(self, spec: JobSpec) -> str:
        """Create a TrainingJob; return its name."""
        body, shipped = object_of(spec, self._image)
        ship = body["spec"].get("ship")
        key = secrets.token_hex(8)
        made = self._make(self._jobs, {**body, "spec": {**body["spec"], **({"suspend": True} if shipped else {})}}, key)
        name = str(made["metadata"]["name"])
        if shipped is not None:
            # Only once the job exists, with which it is deleted; no pod waits for it meanwhile.
            config = {**shipped, "metadata": children.metadata_of(TRAINING_JOB, {**made, **_kind()}, ship["configMap"])}
            try:
                self._make(self._configs, config, key)
                self._patch(name, {"suspend": bool(body["spec"].get("suspend"))})
            except JobError:
                self._withdraw(made)
                raise
        return name

    def preview(self, spec: JobSpec) -> str:
        """Return the TrainingJob as YAML, followed by the ConfigMap with the code, if code is sent with it."""
        body, shipped = object_of(spec, self._image)
        objects = [body]
        if shipped is not None:
            objects.append({**shipped, "metadata": {"name": body["spec"]["ship"]["configMap"]}})
        return str(yaml.safe_dump_all(objects, sort_keys=False))

    def _withdraw(self, made: Mapping[str, Any]) -> None:
        """Delete a job whose code could not be sent, if possible: it would stay suspended and keep its name."""
        metadata = made["metadata"]
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": metadata["uid"]}}
        with contextlib.suppress(JobError):
            self._ask("DELETE", f"{self._jobs}/{metadata['name']}", options)

    def jobs(self) -> Sequence[JobStatus]:
        """Return all jobs of the namespace, oldest first."""
        found = self._ask("GET", self._jobs)["items"]
        return sorted((status_of(each) for each in found), key=lambda status: (status.created or 0.0, status.name))

    def status(self, name: str) -> JobStatus:
        """Return the status of a job, with its last Events."""
        job = self._job(name)
        query = {"fieldSelector": f"involvedObject.name={name},involvedObject.kind={TRAINING_JOB.kind}"}
        try:
            events = self._ask("GET", self._events, query=query)["items"]
        except NotAllowed:
            events = []
        return status_of(job, events)

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the output of the job's workers, from one launcher pod after the other."""
        return of_rank(self._lines(name, follow), rank)

    def scale(self, name: str, workers: int) -> None:
        """Change the number of workers."""
        limits = self._job(name)["spec"]["workers"]
        refusals.check_workers(name, workers, limits["min"], limits["max"])
        self._alive(name)
        self._patch(name, {"workers": {"replicas": workers}})

    def cancel(self, name: str) -> None:
        """Cancel a job with its grace period; a second request ends it at once."""
        job = self._job(name)
        if not status_of(job).state.is_over:
            self._patch(name, {"cancel": True})
        elif (job["spec"] or {}).get("cancel"):
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            self._ask("DELETE", self._pods, options, {"labelSelector": _pods_of(name)})
        else:
            raise Refused(f"job {name} is over", f"kubectl delete trainingjob {name} removes what is left of it")

    def suspend(self, name: str) -> None:
        """Delete a job's pods until it is resumed."""
        self._alive(name)
        self._patch(name, {"suspend": True})

    def resume(self, name: str) -> None:
        """Resume a suspended job."""
        self._alive(name)
        self._patch(name, {"suspend": False})

    # --- logs ---------------------------------------------------------------------------------------------------

    def _lines(self, name: str, follow: bool) -> Iterator[str]:
        logs: dict[tuple[str, int], _Log] = {}
        shown: set[str] = set()
        while True:
            job = self._job(name)
            over, rests = status_of(job).state.is_over, False
            for failed, lines in lines_of_failures(job):
                if failed not in shown:
                    shown.add(failed)
                    yield from lines
            for pod in self._launchers(name):
                if pod_state.phase(pod) == "Pending":
                    continue
                # A restarted program writes a separate log.
                log = logs.setdefault((str(pod["metadata"]["uid"]), pod_state.restarts(pod)), _Log())
                if not log.is_whole:
                    yield from self._lines_of(pod["metadata"]["name"], follow, log)
                    rests = rests or not log.is_whole
            if (over or not follow) and not rests:
                return
            time.sleep(_POLL_SECONDS)

    def _launchers(self, name: str) -> list[Object]:
        query = {"labelSelector": f"{_pods_of(name)},{names.ROLE_LABEL}={names.LAUNCHER}"}
        found: list[Object] = self._ask("GET", self._pods, query=query)["items"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"].get(names.INDEX_LABEL, 0)))

    def _lines_of(self, pod: str, follow: bool, log: _Log) -> Iterator[str]:
        """Yield the lines of a log that were not yielded yet, until it is complete or the connection breaks.

        A log without new data for a while is not taken as complete: the API server and the job are checked first.
        """
        query = {"container": names.LAUNCHER, "follow": str(follow).lower(), "timestamps": "true"}
        if log.newest:
            query["sinceTime"] = log.newest
        known = log.is_known()
        yielded = False
        silence = _QUIET_SECONDS if follow else _SECONDS
        try:
            for line in self._api.lines(f"{self._pods}/{pod}/log", query, _SECONDS, silence):
                stamp, _, text = line.partition(" ")
                if not yielded and known(stamp):
                    continue
                yielded = True
                log.add(stamp)
                yield text + "\n"
            log.is_whole = True
        except ApiError as error:
            if yielded:
                log.breaks = 0
            if not (follow and isinstance(error, Silent)):
                # If its node is gone, the next launcher pod continues.
                log.breaks += 1
            # A pod whose log the server refuses is gone, or has not begun.
            log.is_whole = error.code != 0 or log.breaks > _MOST_BREAKS

    # --- requests ------------------------------------------------------------------------------------------------

    def _job(self, name: str) -> dict[str, Any]:
        try:
            return self._ask("GET", f"{self._jobs}/{name}")
        except UnknownJob:
            known = ", ".join(status.name for status in self.jobs())
            hint = (
                f"its jobs are: {known}" if known else f"it has no jobs; {NAMESPACE_VARIABLE} names another namespace"
            )
            raise UnknownJob(f"there is no job {name} in namespace {self._namespace}", hint) from None

    def _alive(self, name: str) -> None:
        status = status_of(self._job(name))
        if status.state.is_over:
            raise refusals.is_over(name, status.state)

    def _patch(self, name: str, spec: Mapping[str, Any]) -> None:
        """Change the spec of a job; the request may be carried out several times.

        Raises:
            JobError: the job was not changed, or it is unknown whether it was.
        """
        self._insist(
            lambda _: self._api.send("PATCH", f"{self._jobs}/{name}", {"spec": spec}, content=_MERGE),
            f"job {name} may or may not have been changed",
            f"check that before you repeat it: farandole status {name} --on kubernetes",
        )

    def _make(self, path: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Create an object once: if it exists after an answer was lost, the key shows whether this call created it.

        Raises:
            JobError: the object was not created, or it is unknown whether it was.
        """
        metadata = body["metadata"]
        annotations = {**metadata.get("annotations", {}), names.SUBMISSION_ANNOTATION: key}
        body = {**body, "metadata": {**metadata, "annotations": annotations}}

        def send(is_again: bool) -> dict[str, Any]:
            try:
                return self._api.send("POST", path, body)
            except Conflict:
                found = self._ask("GET", f"{path}/{metadata['name']}") if is_again else {"metadata": {}}
                if found["metadata"].get("annotations", {}).get(names.SUBMISSION_ANNOTATION) != key:
                    raise
                return found

        return self._insist(
            send,
            f"{metadata['name']} may or may not have been created",
            "check whether it exists, before you submit it again: farandole jobs --on kubernetes",
        )

    def _insist(self, send: Callable[[bool], dict[str, Any]], unsure: str, hint: str) -> dict[str, Any]:
        """Send a request that changes something, and repeat it for a while if its answer is lost.

        Args:
            send: sends the request; its argument is whether it was sent before without an answer.
            unsure: text about what is unknown if no answer comes.
            hint: the next step in that case.

        Raises:
            JobError: it was refused, or no answer came.
        """
        deadline = time.monotonic() + _RETRY_SECONDS
        lost = False
        while True:
            try:
                return send(lost)
            except ApiError as error:
                if error.code or (isinstance(error, NotSent) and not lost):
                    raise _refusal(error) from None
                lost, why = lost or not isinstance(error, NotSent), str(error)
            if time.monotonic() > deadline:
                raise Unreachable(f"{why}; {unsure}", hint)
            time.sleep(_POLL_SECONDS)

    def _ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            return self._api.send(method, path, body, query)
        except ApiError as error:
            raise _refusal(error) from None


@dataclass
class _Log:
    """The part of a launcher pod's log that was yielded."""

    newest: str = ""
    """Time stamp of the last line."""
    of_newest: int = 0
    """Number of lines with that time stamp: a node gives the same one to lines that it reads together."""
    breaks: int = 0
    """Number of breaks of the connection since the last new line."""
    is_whole: bool = False

    def add(self, stamp: str) -> None:
        """Record that a line was yielded."""
        self.of_newest = self.of_newest + 1 if stamp == self.newest else 1
        self.newest = stamp

    def is_known(self) -> Callable[[str], bool]:
        """Return a function that returns whether a line was yielded before, when the log is read again.

        It is called with the time stamps of the lines, in order. All time stamps of a node have the same length.
        """
        newest, left = self.newest, self.of_newest

        def known(stamp: str) -> bool:
            nonlocal left
            if stamp == newest:
                left -= 1
                return left >= 0
            return stamp < newest

        return known


def connect(environment: Mapping[str, str]) -> KubernetesJobs:
    """Return the service of kubectl's current namespace. Without a cluster, it can only preview jobs."""
    config, why = None, "no Kubernetes cluster is configured"
    try:
        config = default_config()
    except (ConfigError, OSError) as error:
        why = f"{why}: {error}"
    namespace = str(environment.get(NAMESPACE_VARIABLE) or ("default" if config is None else config.namespace))
    api = NoCluster(why) if config is None else BlockingApi.connect(config, _SECONDS)
    return KubernetesJobs(api, namespace, environment.get(IMAGE_VARIABLE, ""))


def object_of(spec: JobSpec, image: str = "") -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the TrainingJob of a job, and the ConfigMap with its code, without metadata, if code is sent with it.

    Raises:
        BadSpec: the job is not valid on Kubernetes.
    """
    spec.check()
    described = to_dict(spec)
    own = dict(described.pop("options", {}).get(PLACE, {}))
    unknown = [key for key in own if key not in KUBERNETES_KEYS]
    if unknown:
        raise BadSpec(f"options.kubernetes.{unknown[0]}: unknown key", f"the keys are {', '.join(KUBERNETES_KEYS)}")
    name = described.pop("name", "") or _made_up(spec.command)
    if not described.get("image") and image:
        described["image"] = image
    if not described.get("image") and not own.get("template"):
        raise BadSpec("image: Kubernetes needs one, with farandole in it", f"--image IMAGE, or set {IMAGE_VARIABLE}")
    for text in (*spec.command, *spec.environment.values()):
        if shown(text) != text:
            raise BadSpec(f"{shown(text)}: Kubernetes takes only text in UTF-8", "write it in UTF-8, or in a file")
    shipped = None
    if isinstance(folder := own.get("ship"), str):
        shipped, items = code.config_map(folder)
        own["ship"] = {"configMap": f"{name}-code", "items": items}
    body = {**_kind(), "metadata": {"name": name}, "spec": {**described, **own}}
    return body, shipped


def _kind() -> dict[str, str]:
    return {"apiVersion": TRAINING_JOB.api_version, "kind": TRAINING_JOB.kind}


def _made_up(command: Sequence[str]) -> str:
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^a-z0-9]+", "-", os.path.basename(script).removesuffix(".py").lower()).strip("-")
    return f"{stem[:30] or 'job'}-{secrets.token_hex(3)}"


def _pods_of(name: str) -> str:
    return f"{names.JOB_LABEL}={children.label_value(name)},{names.KIND_LABEL}={TRAINING_JOB.plural}"


def _refusal(error: ApiError) -> JobError:
    """Return the job error for an error of the API server."""
    message = str(error)
    if isinstance(error, NoSuchKind):
        return Unreachable("the cluster does not know TrainingJobs", "farandole kubernetes install")
    if isinstance(error, NotFound):
        return UnknownJob(message)
    if error.code in (401, 403):
        return NotAllowed(message, "ask an administrator of the cluster for the right")
    if error.code == 0:
        return Unreachable(message, _NO_CLUSTER)
    if isinstance(error, Unavailable):
        return Unreachable(f"the API server cannot answer: {message}", "try again")
    return Refused(message)
