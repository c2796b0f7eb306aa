"""TrainingJobs on a real API server: any of their pods may be lost, and the training loses no sample.

A job takes long to start, because its workers import a framework. So one training lives through most of what may
happen, one thing after the other.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from step_books import Books
from tests.kubernetes.api import Api, Refused
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator
from tests.kubernetes.training_jobs import Watched, book_keeping_job, longest_pause, token_of

# How often a launcher is evicted, and killed, in one training.
TAKE_OVERS = int(os.environ.get("FARANDOLE_TAKE_OVERS", "1"))
pytestmark = pytest.mark.timeout(600 * TAKE_OVERS)


def test_no_sample_is_lost_with_worker_pods_and_operator(
    cluster: Cluster, operator: RunningOperator, namespace: str, tmp_path: Path
) -> None:
    job, books = _start(cluster, namespace, tmp_path, torch=True)
    told = _Told()

    victim = job.running("worker")[1]
    told.begins("a worker pod is evicted")
    cluster.evict(namespace, victim)
    cluster.until(lambda: _is_gone(job, victim), f"{victim} is gone")
    job.await_steps(books, 3, 3)
    assert "leaves at the end of a step" in job.launcher_log()

    victim = job.running("worker")[0]
    told.begins("a worker pod is killed")
    cluster.kill_pod(namespace, victim)
    cluster.until(lambda: victim not in job.running("worker"), f"{victim} is gone", instead=job.story)
    job.await_steps(books, 3, 3)

    cluster.kubectl("scale", "-n", namespace, "trainingjob/job", "--replicas=2")
    job.await_steps(books, 3, 2)
    cluster.until(lambda: len(job.running("worker")) == 2, "two worker pods are left")

    cluster.kubectl("scale", "-n", namespace, "trainingjob/job", "--replicas=3")
    job.await_steps(books, 3, 3)

    _no_stranger_joins(job)
    _only_its_own_state(job)

    told.begins("the operator and a worker pod are killed")
    operator.kill()
    cluster.kill_pod(namespace, job.running("worker")[0])
    job.await_steps(books, 5, 2)
    operator.start()
    job.await_steps(books, 3, 3)

    _ends_well(job, books, told)


def test_no_sample_is_lost_with_launcher_pod(
    cluster: Cluster, operator: RunningOperator, namespace: str, tmp_path: Path
) -> None:
    job, books = _start(cluster, namespace, tmp_path)
    told = _Told()
    workers = job.running("worker")
    for how, take in (("evicted", cluster.evict), ("killed", cluster.kill_pod)) * TAKE_OVERS:
        told.begins(f"the launcher pod is {how}")
        launcher = job.pods("launcher")[-1]
        take(namespace, launcher["metadata"]["name"])
        another = functools.partial(_has_another, job, launcher)
        cluster.until(another, "another launcher has the job", instead=job.story)
        job.await_steps(books, 5, 3)
    assert job.running("worker") == workers

    told.begins("the launcher pod and a worker pod are killed")
    launcher, victim = job.pods("launcher")[-1], workers[0]
    cluster.kill_pods(namespace, launcher["metadata"]["name"], victim)
    cluster.until(lambda: victim not in job.running("worker"), f"{victim} is gone", instead=job.story)
    job.await_steps(books, 5, 2)
    job.await_steps(books, 3, 3)

    _ends_well(job, books, told)


def _ends_well(job: Watched, books: Books, told: _Told) -> None:
    """Let the training end, and see that each sample was used once."""
    books.stop()
    job.await_state("Succeeded")
    told.end()
    assert books.wrongs() == []
    for what, began, ended in told.spans:
        print(f"{what}: at most {longest_pause(books, began, ended):.2f} s without a step")


class _Told:
    """What has been done to a job, and when."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []
        self.at = 0.0
        self._what = ""

    def begins(self, what: str) -> None:
        """Record what is done now."""
        self.end()
        self._what, self.at = what, time.time()

    def end(self) -> None:
        """Nothing more is done."""
        if self._what:
            self.spans.append((self._what, self.at, time.time()))
        self._what = ""


def _start(cluster: Cluster, namespace: str, tmp_path: Path, torch: bool = False) -> tuple[Watched, Books]:
    """Start a training that keeps books, and return it when three workers train."""
    books = tmp_path / "books"
    cluster.apply(*book_keeping_job("job", books, torch=torch), namespace=namespace)
    job = Watched(cluster, namespace, "job")
    job.await_size(3)
    found = Books([books])
    job.await_steps(found, 3, 3)
    return job, found


def _is_gone(job: Watched, pod: str) -> bool:
    """Return whether a pod is there no more, or has ended."""
    found = [each for each in job.cluster.pods(job.namespace) if each["metadata"]["name"] == pod]
    return not found or found[0]["status"].get("phase") in ("Succeeded", "Failed")


def _has_another(job: Watched, before: dict[str, Any]) -> bool:
    """Return whether another launcher has taken the job over than the one that was there before."""
    pods = job.pods("launcher")
    if not pods or pods[-1]["status"].get("phase") != "Running":
        return False
    now = pods[-1]
    again = (
        now["status"]["containerStatuses"][0]["restartCount"] > before["status"]["containerStatuses"][0]["restartCount"]
    )
    is_other = now["metadata"]["name"] != before["metadata"]["name"] or again
    name = now["metadata"]["name"]
    return is_other and "has taken over" in job.cluster.kubectl("logs", "-n", job.namespace, name, check=False)


def _no_stranger_joins(job: Watched) -> None:
    """A pod that does not hold the job's secret is sent away."""
    dial = (
        "python3 -m farandole.control.agent.dial --launcher job-launcher:7707 --secret-file /tmp/guess --name intruder"
    )
    script = f"echo {'0' * 64} > /tmp/guess; exec {dial}"
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    intruder = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "intruder"}, "spec": spec}
    job.cluster.apply(intruder, namespace=job.namespace)

    def is_refused() -> bool:
        return "could not prove" in job.cluster.kubectl("logs", "-n", job.namespace, "intruder", check=False)

    job.cluster.until(is_refused, "the intruder is sent away", instead=job.story)
    assert "intruder" not in str(job.status["progress"])
    job.cluster.api.delete(f"/api/v1/namespaces/{job.namespace}/pods/intruder", gracePeriodSeconds=0)


def _only_its_own_state(job: Watched) -> None:
    """Worker pods have no account, and the launcher's reads and changes two objects of its own job only."""
    worker = job.pods("worker")[0]["spec"]
    assert worker["automountServiceAccountToken"] is False
    assert not any("serviceaccount" in mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"])
    assert worker["securityContext"]["runAsNonRoot"] is True
    (secret,) = [each["secret"]["secretName"] for each in worker["volumes"] if "secret" in each]

    control = job.cluster.control
    launcher = Api(control.url, token_of(job.cluster, job.namespace, "job-launcher"), control.authority)
    core = f"/api/v1/namespaces/{job.namespace}"
    assert launcher.get(f"{core}/configmaps/job-state")
    refused: list[Callable[[], object]] = [
        lambda path=path: launcher.get(f"{core}/{path}")
        for path in (f"secrets/{secret}", "secrets", "configmaps", "configmaps/job-code", "pods", "pods/job-launcher-0")
    ]
    own_kind = f"/apis/farandole.dev/v1alpha1/namespaces/{job.namespace}/trainingjobs/job"
    refused.append(lambda: launcher.patch(own_kind, {"spec": {}}))
    refused.append(lambda: launcher.get("/api/v1/namespaces/default/configmaps/job-state"))
    for ask in refused:
        with pytest.raises(Refused, match="403"):
            ask()
