"""TrainingJobs that Kueue admits, by the rules of its code: a pod group for the start, and single pods.

`PlayedKueue` is a FAKE of Kueue's integration of pods, told again from its code: it holds pods back, admits whole
groups and single pods within a quota, deletes what is too many, and keeps pods by its finalizer.
"""

from __future__ import annotations

from typing import Any

from tests.unit.kubernetes.training_job.played_cluster import PlayedCluster, job_of

from farandole.control.kubernetes import names, times
from farandole.control.kubernetes.model import Outcome, Ref

QUEUE, GROUP = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"
COUNT, RETRIABLE = "kueue.x-k8s.io/pod-group-total-count", "kueue.x-k8s.io/retriable-in-group"
FINALIZER = "kueue.x-k8s.io/managed"
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
Pod = dict[str, Any]


class PlayedKueue(PlayedCluster):
    """A cluster with Kueue.

    Attributes:
        quota: pods that may run.
        finished: groups that have given their quota back.
        excess: names of pods that Kueue has deleted because their group was full.
    """

    def __init__(self, job: dict[str, Any], quota: int) -> None:
        super().__init__(job)
        self.quota = quota
        self.admitted: set[str] = set()
        self.finished: set[str] = set()
        self.excess: list[str] = []

    def reconcile(self) -> Outcome:
        before = set(self.children)
        outcome = super().reconcile()
        for ref, pod in self.children.items():
            if ref.kind == "Pod" and ref not in before and QUEUE in pod["metadata"]["labels"]:
                pod["metadata"]["finalizers"] = [FINALIZER]
                pod["status"]["conditions"] = [GATED]
        return outcome

    def _go(self, pod: Pod) -> None:
        del self.children[Ref("v1", "Pod", "team", pod["metadata"]["name"])]

    def members(self, group: str) -> list[Pod]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get(GROUP) == group]

    def admit(self) -> None:
        """Do what Kueue does when something has changed."""
        for group in sorted({pod["metadata"]["labels"].get(GROUP) or "" for pod in self.pods()} - {""}):
            self._group(group)
        for pod in self.pods():
            if GROUP in pod["metadata"]["labels"]:
                continue
            if pod["metadata"].get("deletionTimestamp"):
                self._go(pod)
            elif pod["metadata"]["name"] not in self.admitted and self._used() < self.quota:
                self.admitted.add(pod["metadata"]["name"])
                pod["status"] = {"phase": "Running"}

    def _group(self, group: str) -> None:
        pods = self.members(group)
        counts = {pod["metadata"]["annotations"][COUNT] for pod in pods}
        assert len(counts) == 1, "all say the same count"
        count = int(counts.pop())
        told = any(pod["metadata"]["annotations"].get(RETRIABLE) == "false" for pod in pods)
        if told and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods):
            self.finished.add(group)
            for pod in pods:
                pod["metadata"]["finalizers"] = []
                if pod["metadata"].get("deletionTimestamp"):
                    self._go(pod)
            return
        active = [pod for pod in pods if pod["status"]["phase"] != "Failed"]
        for role in (names.LAUNCHER, names.WORKER):
            mine = [pod for pod in active if pod["metadata"]["labels"][names.ROLE_LABEL] == role]
            for pod in mine[1 if role == names.LAUNCHER else count - 1 :]:
                self.excess.append(pod["metadata"]["name"])
                self._go(pod)
                active.remove(pod)
        if len(active) == count:
            # Those that have been replaced are let go.
            for pod in [pod for pod in pods if pod["status"]["phase"] == "Failed"]:
                self._go(pod)
        if group in self.admitted or (len(active) == count and self._used() + count <= self.quota):
            self.admitted.add(group)
            for pod in active:
                if pod["status"]["phase"] == "Pending" and not pod["metadata"].get("deletionTimestamp"):
                    pod["status"] = {"phase": "Running"}

    def _used(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods())

    def stop(self, pod: Pod, phase: str = "Failed") -> None:
        """Delete a pod, as Kueue's preemption and people do, and let it end."""
        pod["metadata"].setdefault("deletionTimestamp", times.to_text(self.now + 30))
        pod["status"] = {"phase": phase}

    def turns(self, most: int = 8) -> None:
        for _ in range(most):
            self.settle()
            self.admit()

    def running(self, role: str) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods(role))


def played(quota: int, **spec: Any) -> PlayedKueue:
    job = job_of(**spec)
    job["metadata"]["labels"] = {QUEUE: "team-queue", "kueue.x-k8s.io/priority-class": "high"}
    return PlayedKueue(job, quota)


def test_least_pods_form_a_group_and_further_workers_are_single() -> None:
    cluster = played(quota=2)
    cluster.turns()
    assert cluster.running("launcher") == cluster.running("worker") == 0, "the group needs 3"
    assert cluster.status["state"] == "Waiting"
    assert cluster.status["reason"] == "Kueue has not admitted 3 of its pods yet (LocalQueue team-queue)"
    assert all(GROUP in pod["metadata"]["labels"] for pod in cluster.pods()), "others could take its quota"
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] for pod in cluster.pods()} == {"high"}
    cluster.quota = 3
    cluster.turns()
    assert (cluster.running("launcher"), cluster.running("worker")) == (1, 2)
    assert "not admitted 1 of its pods" in cluster.status["reason"]
    cluster.quota = 4
    cluster.turns()
    assert cluster.running("worker") == 3 and cluster.excess == []


def test_scaling_changes_single_pods_but_not_the_group() -> None:
    cluster = played(quota=9)
    cluster.turns()
    cluster.job["spec"]["workers"] = {"min": 2, "max": 4, "replicas": 4}
    cluster.turns()
    assert cluster.running("worker") == 4
    cluster.job["spec"]["workers"] = {"min": 2, "max": 4, "replicas": 2}
    cluster.turns()
    left = cluster.pods("worker")
    assert len(left) == 2 and all(GROUP in pod["metadata"]["labels"] for pod in left)
    assert cluster.excess == []


def test_failed_member_is_replaced_in_group_and_succeeded_member_by_single_pod() -> None:
    cluster = played(quota=9)
    cluster.turns()
    first, second, _ = cluster.pods("worker")
    cluster.stop(first)
    cluster.now += 60
    cluster.turns()
    assert cluster.running("worker") == 3 and cluster.excess == []
    cluster.stop(second, phase="Succeeded")
    cluster.now += 60
    cluster.turns()
    assert cluster.running("worker") == 3 and cluster.excess == []
    (launcher,) = cluster.pods("launcher")
    cluster.stop(launcher, phase="Succeeded")
    cluster.now += 60
    cluster.turns()
    assert cluster.running("launcher") == 1 and cluster.excess == []


def test_ending_member_is_not_replaced_yet() -> None:
    cluster = played(quota=9)
    cluster.turns()
    pod = cluster.pods("worker")[0]
    pod["metadata"]["deletionTimestamp"] = times.to_text(cluster.now + 30)
    made = len(cluster.made)
    cluster.turns()
    assert len(cluster.made) == made and cluster.excess == []


def test_preempted_job_waits_and_continues() -> None:
    cluster = played(quota=4)
    cluster.turns()
    for pod in cluster.pods():
        cluster.stop(pod)
    cluster.admitted.clear()
    cluster.quota = 0
    cluster.now += 60
    cluster.turns()
    assert cluster.running("worker") == 0
    cluster.quota = 4
    cluster.now += 60
    cluster.turns()
    assert (cluster.running("launcher"), cluster.running("worker")) == (1, 3)


def test_suspended_or_ended_job_releases_quota() -> None:
    for end in ("suspend", "cancel"):
        cluster = played(quota=9)
        cluster.turns()
        (group,) = {pod["metadata"]["labels"].get(GROUP) for pod in cluster.pods()} - {None}
        cluster.job["spec"][end] = True
        cluster.settle()
        for pod in cluster.pods():
            cluster.stop(pod)
        cluster.turns()
        assert cluster.finished == {group}, end
        assert cluster.pods() == [], end
    cluster = played(quota=9)
    cluster.turns()
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    for pod in cluster.pods():
        cluster.stop(pod)
    cluster.turns()
    cluster.job["spec"]["suspend"] = False
    cluster.turns()
    again = {pod["metadata"]["labels"].get(GROUP) for pod in cluster.pods()} - {None}
    assert len(again) == 1 and not again & cluster.finished, "another attempt is another group"
    assert (cluster.running("launcher"), cluster.running("worker")) == (1, 3)


def test_pods_without_label_have_no_kueue_metadata() -> None:
    cluster = PlayedCluster(job_of())
    cluster.settle()
    said = [{**pod["metadata"]["labels"], **pod["metadata"].get("annotations", {})} for pod in cluster.pods()]
    assert not any("kueue" in key for each in said for key in each)
