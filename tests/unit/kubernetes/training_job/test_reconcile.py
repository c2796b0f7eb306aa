"""The pods and the status of a TrainingJob after all kinds of events."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.kubernetes.training_job.played_cluster import PlayedCluster, job_of

from farandole.control.kubernetes import times
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.training_job.job_spec import read


def started(gang_scheduler: str = "", **spec: Any) -> PlayedCluster:
    """Return a job that trains."""
    cluster = PlayedCluster(job_of(**spec), Options(gang_scheduler=gang_scheduler))
    cluster.settle()
    cluster.run_all()
    cluster.told("status", attempt=0, size=3, generation=1, waitsFor="", ranks=[])
    cluster.settle()
    return cluster


def test_job_gets_one_launcher_pod_and_requested_worker_pods() -> None:
    cluster = started()

    assert cluster.names("launcher") == ["job-launcher-0"]
    assert cluster.names("worker") == ["job-worker-0", "job-worker-1", "job-worker-2"]
    assert cluster.status["state"] == "Running"
    kinds = sorted({ref.kind for ref in cluster.children})
    assert kinds == ["ConfigMap", "NetworkPolicy", "Pod", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount"]


def test_several_slots_per_pod_need_fewer_pods() -> None:
    assert len(started(slotsPerPod=2).names("worker")) == 2


def test_failed_worker_pod_is_counted_once_and_replaced_with_new_name() -> None:
    cluster = started()
    cluster.end(cluster.pods("worker")[1], 137)

    cluster.settle()
    cluster.now += 2
    cluster.settle()

    assert cluster.names("worker") == ["job-worker-0", "job-worker-2", "job-worker-3"]
    assert cluster.status["history"]["failures"] == 1


def test_repeatedly_failing_pods_are_replaced_with_backoff() -> None:
    cluster = started()
    waits = []
    for _ in range(6):
        for pod in cluster.pods("worker"):
            cluster.end(pod, 1)
        cluster.settle()
        assert cluster.again_at is not None
        waits.append(cluster.again_at - cluster.now)
        cluster.now = cluster.again_at + 1
        cluster.settle()
        cluster.run_all()
    assert waits == sorted(waits)
    assert waits[-1] <= 60


@pytest.mark.parametrize(("reason", "seconds"), [("Evicted", 5.0), ("", 70.0)])
def test_disrupted_and_long_running_pods_are_replaced_soon(reason: str, seconds: float) -> None:
    cluster = started()
    for _ in range(10):
        cluster.now += seconds
        cluster.end(cluster.pods("worker")[0], 137, reason, lifetime=seconds)
        cluster.settle()
        cluster.now += 1.0
        cluster.settle()
        assert len(cluster.names("worker")) == 3
        cluster.run_all()


def test_killed_pod_with_worker_is_always_replaced_at_once() -> None:
    cluster = started()
    for _ in range(10):
        victim = cluster.pods("worker")[0]
        cluster.told("status", attempt=0, size=3, ranks=[{"worker": 0, "pod": victim["metadata"]["name"]}])
        cluster.end(victim, 137, lifetime=5.0, container={"reason": "Error"})
        cluster.settle()
        cluster.settle()
        assert len(cluster.names("worker")) == 3
        cluster.run_all()


def test_repeated_lack_of_memory_delays_replacement() -> None:
    cluster = started()
    for _ in range(6):
        victim = cluster.pods("worker")[0]
        cluster.told("status", attempt=0, size=3, ranks=[{"worker": 0, "pod": victim["metadata"]["name"]}])
        cluster.end(victim, 137, lifetime=5.0, container={"reason": "OOMKilled"})
        cluster.settle()
        cluster.now = cluster.again_at or cluster.now
        cluster.settle()
        cluster.run_all()
    assert cluster.status["history"]["failures"] == 6


MISSING = "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'farandole'\n"


def test_early_pod_failure_is_reported_with_last_lines_and_next_attempt() -> None:
    cluster = PlayedCluster(job_of())
    cluster.settle()
    victim = cluster.pods("worker")[1]
    cluster.end(victim, 1, container={"reason": "Error", "message": MISSING})

    outcome = cluster.reconcile()

    # The status is written first; then the pod goes.
    assert [deletion.ref.name for deletion in outcome.deletions] == ["job-worker-1"]
    (told,) = cluster.status["failures"]
    assert (told["pod"], told["exitCode"]) == ("job-worker-1", 1)
    assert told["lines"] == MISSING.strip()
    assert cluster.status["state"] == "Restarting"
    assert cluster.status["reason"] == (
        "job-worker-1 failed (Error, exit code 1, ModuleNotFoundError: No module named 'farandole'); "
        "the next one is made at 1970-01-12T13:46:41Z"
    )

    cluster.now = cluster.again_at or 0.0
    cluster.settle()
    cluster.run_all()
    cluster.told("status", attempt=0, size=3, generation=1, waitsFor="", ranks=[])
    cluster.settle()
    assert cluster.status["state"] == "Running"
    assert cluster.status["reason"] == "3 workers train."


def test_status_keeps_only_last_failures_with_limited_output() -> None:
    cluster = PlayedCluster(job_of())
    cluster.settle()
    for _ in range(8):
        for pod in cluster.pods("worker"):
            cluster.end(pod, 1, container={"reason": "Error", "message": "x" * 10_000})
        cluster.settle()
        cluster.now = cluster.again_at or cluster.now
        cluster.settle()
    assert len(cluster.status["failures"]) == 5
    assert all(len(each["lines"]) == 2048 for each in cluster.status["failures"])


def test_job_without_workers_is_restarting_until_it_trains() -> None:
    cluster = started()
    for pod in cluster.pods("worker"):
        cluster.end(pod, 137, "Evicted")
    cluster.told("status", attempt=0, size=0, generation=1, waitsFor="waits for workers", ranks=[])
    cluster.settle()
    assert cluster.status["state"] == "Restarting"
    cluster.run_all()
    cluster.told("status", attempt=0, size=3, generation=2, waitsFor="", ranks=[])
    cluster.settle()
    assert cluster.status["state"] == "Running"


def test_repeatedly_failing_launcher_is_reported() -> None:
    cluster = PlayedCluster(job_of())
    cluster.settle()
    cluster.run_all()
    (launcher,) = cluster.pods("launcher")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "PermissionError: /tmp"}}
    waiting = {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container=launcher"}
    }
    container = {"name": "launcher", "image": "i", "restartCount": 3, "state": waiting, "lastState": ended}
    launcher["status"]["containerStatuses"] = [container]
    cluster.now += 10
    cluster.settle()
    assert cluster.status["state"] == "Restarting"
    assert "exit code 1, PermissionError: /tmp" in cluster.status["reason"]

    # The kubelet's next wait does not count as news.
    waiting["waiting"]["message"] = "back-off 1m20s restarting failed container=launcher"
    assert cluster.reconcile().status is None


@pytest.mark.parametrize(
    ("code", "reason", "lifetime", "launcher"),
    [
        (137, "Error", 12, "job-launcher-1"),
        (143, "Error", 12, "job-launcher-1"),
        (137, "OOMKilled", 12, "job-launcher-0"),  # It would need as much again.
        (137, "Error", 3, "job-launcher-0"),
        (1, "Error", 12, "job-launcher-0"),
    ],
)
def test_killed_launcher_whose_restart_kubelet_delays_is_replaced(
    code: int, reason: str, lifetime: float, launcher: str
) -> None:
    cluster = started()
    (pod,) = cluster.pods("launcher")
    began, ended = times.to_text(cluster.now - lifetime), times.to_text(cluster.now)
    before = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": ended}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting failed container=launcher"}
    states = {"state": {"waiting": waiting}, "lastState": {"terminated": before}}
    pod["status"]["containerStatuses"] = [{"name": "launcher", "restartCount": 2, **states}]

    cluster.settle()
    cluster.finish_terminating()

    assert cluster.names("launcher") == [launcher]
    assert len(cluster.names("worker")) == 3
    assert cluster.status["state"] == "Running"


def test_message_of_kubelet_is_passed_on() -> None:
    cluster = PlayedCluster(job_of())
    cluster.settle()
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": "configmap 'missing' not found"}}
    pod = cluster.pods("worker")[0]
    pod["status"]["containerStatuses"] = [{"name": "worker", "image": "me/train", "state": waiting}]
    cluster.now += 10
    cluster.settle()
    assert cluster.status["reason"] == (
        "pod job-worker-0, container worker, image me/train: CreateContainerConfigError: configmap 'missing' not found"
    )


def test_evicted_launcher_pod_is_replaced_while_workers_stay() -> None:
    cluster = started()
    workers = cluster.names("worker")
    cluster.end(cluster.pods("launcher")[0], 1, reason="Evicted")

    cluster.settle()

    assert cluster.names("launcher") == ["job-launcher-1"]
    assert cluster.names("worker") == workers
    assert "train on" in cluster.status["reason"]


def test_launcher_pod_with_deleted_account_is_replaced() -> None:
    cluster = started()
    cluster.children = {ref: child for ref, child in cluster.children.items() if ref.kind != "ServiceAccount"}
    cluster.now += 5

    cluster.reconcile()  # It is there again.
    cluster.settle()
    cluster.finish_terminating()

    assert cluster.names("launcher") == ["job-launcher-1"]
    assert len(cluster.names("worker")) == 3


def test_terminating_launcher_pod_does_not_delay_successor() -> None:
    cluster = started()
    cluster.pods("launcher")[0]["metadata"]["deletionTimestamp"] = "2001-09-09T01:46:40Z"

    cluster.reconcile()

    assert "job-launcher-1" in cluster.names("launcher")


def test_pods_of_unresponsive_node_are_force_deleted() -> None:
    cluster = started()
    pod = cluster.pods("worker")[0]
    pod["metadata"]["deletionTimestamp"] = "1970-01-12T13:40:00Z"  # A while ago.

    cluster.settle()

    assert pod["metadata"]["name"] not in cluster.names("worker")
    assert len(cluster.names("worker")) == 3


def test_scaling_down_deletes_youngest_pods_first() -> None:
    cluster = started()
    cluster.job["spec"]["workers"] = {"min": 2, "max": 4, "replicas": 2}

    cluster.settle()
    cluster.finish_terminating()

    assert cluster.names("worker") == ["job-worker-0", "job-worker-1"]


@pytest.mark.parametrize(("code", "state", "condition"), [(0, "Succeeded", "Succeeded"), (3, "Failed", "Failed")])
def test_outcome_of_launcher_ends_job(code: int, state: str, condition: str) -> None:
    cluster = started()
    cluster.told("outcome", attempt=0, exitCode=code, report="why")

    cluster.settle()
    cluster.finish_terminating()

    assert (cluster.status["state"], cluster.status["exitCode"]) == (state, code)
    assert [each["type"] for each in cluster.status["conditions"] if each["status"] == "True"] == ["Created", condition]
    assert cluster.names("worker") == []
    cluster.end(cluster.pods("launcher")[0], 0)
    cluster.settle()
    assert cluster.names("launcher") == ["job-launcher-0"]  # For its output.


def test_failed_job_is_restarted_up_to_retries() -> None:
    cluster = started(retries=1)
    cluster.told("outcome", attempt=0, exitCode=1, report="why")
    cluster.settle()
    cluster.finish_terminating()
    cluster.settle()

    assert cluster.status["state"] != "Failed"
    assert cluster.names("launcher") == ["job-launcher-1"]
    cluster.told("outcome", attempt=1, exitCode=1, report="why")
    cluster.settle()
    assert cluster.status["state"] == "Failed"


def test_suspension_deletes_pods_and_resuming_begins_new_attempt() -> None:
    cluster = started()
    cluster.job["spec"]["suspend"] = True
    cluster.settle()
    cluster.finish_terminating()
    cluster.settle()
    assert cluster.pods() == []
    assert cluster.status["state"] == "Suspended"

    cluster.job["spec"]["suspend"] = False
    cluster.settle()

    assert cluster.names("launcher") == ["job-launcher-1"]
    assert cluster.status["history"]["attempt"] == 1


def test_cancelled_job_has_no_running_pods() -> None:
    cluster = started()
    cluster.job["spec"]["cancel"] = True
    cluster.settle()
    cluster.finish_terminating()
    assert (cluster.status["state"], cluster.pods()) == ("Cancelled", [])


def test_exceeded_quota_is_reported_and_same_names_are_retried() -> None:
    cluster = PlayedCluster(job_of())
    cluster.refuses = True
    cluster.settle()
    assert cluster.status["conditions"][-1]["reason"] == "QuotaExceeded"
    for _ in range(5):
        cluster.now += 60
        cluster.settle()
    cluster.refuses = False
    cluster.now += 120
    cluster.settle()

    assert cluster.made == ["job-launcher-0", "job-worker-0", "job-worker-1", "job-worker-2"]


def test_job_is_deleted_after_ttl() -> None:
    cluster = started(ttlSecondsAfterFinished=60)
    cluster.told("outcome", attempt=0, exitCode=0, report="")
    cluster.settle()
    assert not cluster.deleted
    cluster.now += 61
    cluster.reconcile()
    assert cluster.deleted


def test_invalid_spec_is_reported() -> None:
    cluster = PlayedCluster(job_of(workers={"min": 3, "max": 2, "replicas": 3}))
    cluster.settle()
    blocked = cluster.status["conditions"][-1]
    assert (blocked["type"], blocked["reason"]) == ("Blocked", "InvalidSpec")
    assert "max 2 is below min 3" in blocked["message"]
    assert cluster.pods() == []


def test_secrets_are_files_and_workers_run_unprivileged_without_token() -> None:
    cluster = started(environment={"LR": "0.1"}, resources={"cpu": "2"})
    body = cluster.pods("worker")[0]["spec"]

    assert body["automountServiceAccountToken"] is False
    assert body["securityContext"]["runAsNonRoot"] is True
    assert body["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    main = body["containers"][0]
    assert main["command"][:3] == ["python3", "-m", "farandole.control.agent.dial"]
    assert "--secret-file" in main["args"]
    assert {"name": "LR", "value": "0.1"} in main["env"]
    assert "hostNetwork" not in body


def random_value(chance: random.Random) -> Any:
    """Return anything that JSON can be."""
    return chance.choice(
        [None, True, -1, 0, 2**70, 1.5, "", "x" * 300, [], ["a"], [None], {}, {"a": 1}, {"spec": {"containers": [3]}}]
    )


def test_arbitrary_spec_is_read_or_refused() -> None:
    chance = random.Random(20)
    keys = [
        *job_of()["spec"],
        "template",
        "ship",
        "slotsPerPod",
        "python",
        "suspend",
        "resources",
        "environment",
        "keepTogether",
        "preferNodes",
        "nonsense",
    ]
    for _ in range(3000):
        spec = {**job_of()["spec"]}
        for key in chance.sample(keys, chance.randint(1, 3)):
            spec[key] = random_value(chance)
        job = {**job_of(), "spec": spec if chance.random() < 0.95 else random_value(chance)}
        found, faults = read(job)
        assert (found is None) == bool(faults)
        cluster = PlayedCluster(job, Options(gang_scheduler=chance.choice(["", "volcano"])))
        cluster.settle()


@pytest.mark.parametrize("seed", range(60))
def test_job_ends_with_its_pods_under_random_events(seed: int) -> None:
    """Random events; then peace: within minutes the job has what it asks for, and ends when its launcher says so."""
    chance = random.Random(seed)
    cluster = started("volcano" if seed % 3 == 0 else "", retries=2)
    for _ in range(40):
        _happen(cluster, chance)
        if chance.random() < 0.7:
            cluster.reconcile()
    cluster.refuses = False
    cluster.job["spec"]["suspend"] = False
    for _ in range(60):
        cluster.now += 10
        cluster.settle()
        cluster.finish_terminating()
        cluster.run_all()
    replicas = cluster.job["spec"]["workers"]["replicas"]
    assert len(cluster.names("worker")) == replicas
    assert len(cluster.names("launcher")) == 1

    cluster.told("outcome", attempt=cluster.status["history"].get("attempt", 0), exitCode=0, report="")
    cluster.settle()
    cluster.finish_terminating()
    assert cluster.status["state"] == "Succeeded"
    assert cluster.names("worker") == []


def _happen(cluster: PlayedCluster, chance: random.Random) -> None:
    pods = cluster.pods()
    pod = chance.choice(pods) if pods else None
    cluster.now += chance.choice([0, 0.5, 3, 40])
    event = chance.randrange(9)
    if event == 0:
        cluster.run_all()
    elif event == 1 and pod is not None:
        cluster.end(pod, chance.choice([0, 1, 137]))
    elif event == 2 and pod is not None:
        cluster.end(pod, 1, reason="Evicted")
    elif event == 3 and pod is not None:
        pod["metadata"].setdefault("deletionTimestamp", cluster_time(cluster))
    elif event == 4 and pod is not None:
        cluster.children = {ref: child for ref, child in cluster.children.items() if child is not pod}
    elif event == 5:
        cluster.job["spec"]["workers"] = {"min": 2, "max": 4, "replicas": chance.randint(2, 4)}
    elif event == 6:
        cluster.job["spec"]["suspend"] = chance.random() < 0.5
    elif event == 7:
        cluster.refuses = chance.random() < 0.5
    else:
        cluster.finish_terminating()


def cluster_time(cluster: PlayedCluster) -> str:
    """Return now, as the API has it."""
    from farandole.control.kubernetes import times

    return times.to_text(cluster.now)
