"""MPIJobs under random events, with an operator that is killed between any two of its actions."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mpi_jobs import v1alpha2, v2beta1
from played_cluster import PlayedCluster

from farandole.control.kubernetes import names, pod_state
from farandole.control.kubernetes.model import Options, Outcome, Problem
from farandole.control.kubernetes.mpijob.reconcile import reconcile

DRAIN = 30.0
SEEDS = 60
EVENTS = 60


class Exploration:
    """One job, what happens to it, and what must hold whatever happens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        job = self.random.choice([v1alpha2, v2beta1])()
        job["spec"]["runPolicy"] = {"backoffLimit": self.random.choice([0, 2, 6]), "cleanPodPolicy": "Running"}
        if self.random.random() < 0.3:
            job["spec"]["launcherCreationPolicy"] = "AtStartup"
        self.job = job
        self.options = Options(gang_scheduler=self.random.choice(["", "", "volcano"]), drain_seconds=DRAIN)
        self.cluster = PlayedCluster(job, reconcile, self.options)
        self.listed_until: dict[str, float] = {}
        self.own_failures = 0
        self.ended: Any = None

    def explore(self) -> None:
        for _ in range(EVENTS):
            self.event()
            self.operator()
        self.finish()

    # --- events ---

    def event(self) -> None:
        losses = [self.fail, self.evict, self.vanish, self.take_away]
        changes = [self.scale, self.suspend, self.refuse]
        happen = self.random.choice([*losses, *changes, *[self.start_pods, self.pass_time] * 2])
        happen()

    def some_pod(self, phase: str = "Running") -> str | None:
        pods = self.cluster.pods().items()
        found = [name for name, pod in pods if pod_state.phase(pod) == phase and not pod_state.terminating(pod)]
        return self.random.choice(found) if found else None

    def start_pods(self) -> None:
        for name, pod in self.cluster.pods().items():
            if pod_state.phase(pod) == "Pending" and self.random.random() < 0.8:
                self.cluster.run(name, ready=self.random.random() < 0.9)

    def fail(self) -> None:
        name = self.some_pod()
        if name and self.random.random() < 0.4:
            self.own_failures += 1
            self.cluster.end(name, code=self.random.choice([1, 137]))

    def evict(self) -> None:
        name = self.some_pod()
        if name:
            self.cluster.end(name, reason="Evicted")

    def vanish(self) -> None:
        name = self.some_pod()
        if name:
            self.cluster.vanish(name)

    def take_away(self) -> None:
        self.cluster.vanish_terminating()

    def pass_time(self) -> None:
        self.cluster.now += self.random.choice([1.0, 20.0, 400.0])

    def scale(self) -> None:
        assert self.cluster.job is not None
        self.cluster.job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] = self.random.randint(1, 4)

    def suspend(self) -> None:
        assert self.cluster.job is not None
        policy = self.cluster.job["spec"]["runPolicy"]
        policy["suspend"] = not policy.get("suspend", False) and self.random.random() < 0.5

    def refuse(self) -> None:
        """The API server refuses what is wanted next, or no longer refuses anything."""
        if self.cluster.problems:
            self.cluster.problems.clear()
            return
        pods = [item for item in self.cluster.decide().wanted if item.ref.kind == "Pod"]
        absent = [item.ref for item in pods if item.ref not in self.cluster.objects]
        if absent:
            ref = self.random.choice(absent)
            self.cluster.problems[ref] = Problem(ref, "QuotaExceeded", "no room", 1, self.cluster.now + 40)

    # --- the operator, and what must hold ---

    def operator(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            self.check(self.cluster.decide())
            self.note_lists()
            killed = self.random.choice([None, None, 0, 1, 2])
            self.cluster.step(until=killed)
        if self.random.random() < 0.5:
            self.settle()

    def settle(self) -> None:
        """Whatever was found, a few rounds bring the job to where nothing is to be done until something happens."""
        for _ in range(12):
            outcome = self.cluster.decide()
            self.check(outcome)
            self.note_lists()
            if not self.cluster.actions(outcome):
                assert outcome.again_at is None or outcome.again_at > self.cluster.now, "it asks to be called at once"
                return
            self.cluster.step()
        raise AssertionError("a hot loop")

    def check(self, outcome: Outcome) -> None:
        job = self.cluster.job
        assert job is not None
        active = [pod for pod in self.cluster.pods(names.LAUNCHER).values() if not pod_state.finished(pod)]
        assert len(active) <= 1, "two launchers"
        wanted = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        suspended = job["spec"]["runPolicy"].get("suspend", False)
        for item in outcome.wanted:
            if item.ref.kind == "Pod" and item.ref not in self.cluster.objects:
                assert not suspended and self.ended is None, "a pod for a job that is to have none"
                index = item.obj["metadata"]["labels"].get(names.INDEX_LABEL)
                assert index is None or int(index) < wanted, "more workers than wanted"
        self.check_drain(outcome, suspended)
        self.check_end(job)

    def check_drain(self, outcome: Outcome, suspended: bool) -> None:
        ended = self.cluster.job and self.cluster.job.get("status", {}).get("completionTime")
        ends = suspended or ended or (outcome.status or {}).get("completionTime")
        launcher = [pod for pod in self.cluster.pods(names.LAUNCHER).values() if pod_state.running(pod)]
        for item in outcome.deletions:
            pod = self.cluster.objects.get(item.ref)
            if pod is None or ends or not launcher or not pod_state.ready(pod):
                continue
            listed = self.listed_until.get(pod["metadata"]["uid"], 0.0)
            assert self.cluster.now - listed >= DRAIN - 1, "a worker goes that was in the host list a moment ago"

    def note_lists(self) -> None:
        try:
            script = self.cluster.config()["discover_hosts.sh"]
        except StopIteration:
            return
        for name, pod in self.cluster.pods(names.WORKER).items():
            if f"echo {name}" in script:
                self.listed_until[pod["metadata"]["uid"]] = self.cluster.now

    def check_end(self, job: dict[str, Any]) -> None:
        conditions = job.get("status", {}).get("conditions", [])
        true = {item["type"] for item in conditions if item["status"] == "True"}
        assert len(true & {"Running", "Succeeded", "Failed", "Suspended"}) <= 1, true
        assert not {"Running", "Restarting"} <= true, "both at once"
        history = job.get("status", {}).get("history", {})
        assert history.get("failures", 0) <= self.own_failures, "more failures are counted than there were"
        if self.ended is not None:
            assert conditions == self.ended, "what has ended has changed"
        elif true & {"Succeeded", "Failed"}:
            self.ended = conditions

    def finish(self) -> None:
        """When nothing more happens to it, every job comes to its end, and nothing of it still runs."""
        assert self.cluster.job is not None
        self.cluster.problems.clear()
        self.cluster.job["spec"]["runPolicy"]["suspend"] = False
        for _ in range(12):
            self.settle()
            self.cluster.vanish_terminating()
            self.cluster.now += 400
            for name, pod in self.cluster.pods().items():
                if not pod_state.finished(pod) and not pod_state.terminating(pod):
                    self.cluster.run(name)
        if self.ended is None:
            assert self.cluster.condition("Running") == ("True", "MPIJobRunning")
            self.cluster.end(str(self.cluster.launcher()["metadata"]["name"]))
            self.settle()
            assert self.cluster.condition("Succeeded") == ("True", "MPIJobSucceeded")
        self.settle()
        self.cluster.vanish_terminating()
        assert [name for name, pod in self.cluster.pods().items() if not pod_state.finished(pod)] == []


@pytest.mark.parametrize("first", range(0, SEEDS, 15))
def test_invariants_hold_under_random_events(first: int) -> None:
    for seed in range(first, first + 15):
        try:
            Exploration(seed).explore()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
