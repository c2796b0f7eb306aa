"""TrainingJobs on a real API server: any of their pods may go, and the training goes on without losing a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from step_books import Books
from tests.kubernetes import operators
from tests.kubernetes.api import Api, Refused
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator
from tests.kubernetes.training_jobs import Watched, accuracy, book_keeping_job, digits_job, longest_pause, token_of

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def operator(cluster: Cluster) -> Iterator[RunningOperator]:
    """Return an operator that serves the cluster, with the rights that the installation gives it."""
    operators.install(cluster)
    with operators.operator(cluster, "training-operator") as one:
        cluster.until(lambda: one.leads, "the operator leads")
        yield one


@pytest.fixture
def training(cluster: Cluster, operator: RunningOperator, namespace: str, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts a training which keeps books, and waits until it trains."""

    def start(*arguments: str, size: int = 3, **spec: Any) -> tuple[Watched, Books]:
        books = tmp_path / "books"
        cluster.apply(*book_keeping_job("job", books, "--pause", "0.05", *arguments, **spec), namespace=namespace)
        job = Watched(cluster, namespace, "job")
        job.await_size(size)
        found = Books([books])
        job.await_steps(found, 3, size)
        return job, found

    return start


def finish(job: Watched, books: Books) -> None:
    """Let a training end, and see that it has lost nothing."""
    books.stop()
    job.await_state("Succeeded")
    assert books.wrongs() == []


def gone(job: Watched, pod: str) -> bool:
    """Say whether a pod is there no more, or has ended."""
    found = [each for each in job.cluster.pods(job.namespace) if each["metadata"]["name"] == pod]
    return not found or found[0]["status"].get("phase") in ("Succeeded", "Failed")


def test_a_worker_pod_that_is_told_to_end_leaves_in_good_order(training: Callable[..., Any]) -> None:
    job, books = training()
    victim = job.running("worker")[1]

    job.cluster.evict(job.namespace, victim)
    job.cluster.until(lambda: gone(job, victim), f"{victim} is gone")
    job.await_steps(books, 3, 3)

    assert "leaves at the end of a step" in job.launcher_log()
    finish(job, books)


def test_a_worker_pod_that_is_killed_is_replaced_while_the_others_train(training: Callable[..., Any]) -> None:
    job, books = training()
    victim = job.running("worker")[1]

    job.cluster.kill_pod(job.namespace, victim)
    job.cluster.until(lambda: victim not in job.running("worker"), f"{victim} is gone")
    job.cluster.until(lambda: len(job.running("worker")) == 3, "there are three worker pods again")
    job.await_steps(books, 3, 3)

    assert victim not in job.running("worker")
    finish(job, books)


def test_a_launcher_pod_may_go_in_any_way_and_the_workers_train_on(training: Callable[..., Any]) -> None:
    job, books = training()
    workers = job.running("worker")
    kinds = (job.cluster.evict, job.cluster.kill_pod, job.cluster.evict_for_pressure)

    for take in kinds:
        launcher = job.running("launcher")[-1]
        began = time.time()
        take(job.namespace, launcher)
        job.cluster.until(lambda: "another one has taken over" in job.launcher_log(), "a launcher has taken over")
        job.cluster.until(lambda: job.running("launcher"), "there is a launcher pod")
        job.await_steps(books, 5, 3)
        assert longest_pause(books, began) < 10.0

    assert job.running("worker") == workers
    finish(job, books)


def test_an_operator_that_is_away_is_not_missed_and_catches_up(
    training: Callable[..., Any], operator: RunningOperator
) -> None:
    job, books = training()
    victim = job.running("worker")[0]

    operator.kill()
    job.cluster.kill_pod(job.namespace, victim)
    job.await_steps(books, 5, 2)
    operator.start()

    job.await_steps(books, 3, 3)
    finish(job, books)


def test_a_node_that_is_lost_takes_its_pods_with_it_and_others_replace_them(training: Callable[..., Any]) -> None:
    job, books = training()
    pods = [pod for pod in job.pods("worker") if pod["spec"]["nodeName"] != _node_of_launcher(job)]
    node = pods[0]["spec"]["nodeName"]
    try:
        job.cluster.lose_node(node)
        job.await_steps(books, 3)
        job.cluster.until(lambda: _elsewhere(job, node), "three worker pods run on other nodes")
        job.await_steps(books, 3, 3)
    finally:
        job.cluster.start_node(node)
    finish(job, books)


def _node_of_launcher(job: Watched) -> str:
    return str(job.pods("launcher")[-1]["spec"]["nodeName"])


def _elsewhere(job: Watched, node: str) -> bool:
    return (
        sum(pod["spec"]["nodeName"] != node and pod["status"]["phase"] == "Running" for pod in job.pods("worker")) == 3
    )


def test_a_job_is_scaled_by_kubectl_within_its_limits(training: Callable[..., Any]) -> None:
    job, books = training(size=3)

    job.cluster.kubectl("scale", "-n", job.namespace, "trainingjob/job", "--replicas=1")
    job.await_steps(books, 3, 1)
    job.cluster.until(lambda: len(job.running("worker")) == 1, "one worker pod is left")
    job.cluster.kubectl("scale", "-n", job.namespace, "trainingjob/job", "--replicas=2")
    job.await_steps(books, 3, 2)

    finish(job, books)


def test_a_suspended_job_has_no_pods_and_goes_on_from_its_checkpoint(
    cluster: Cluster, operator: RunningOperator, namespace: str
) -> None:
    cluster.apply(*digits_job("job", "--epochs", "2"), namespace=namespace)
    job = Watched(cluster, namespace, "job")
    job.await_size(3)

    job.patch(suspend=True)
    job.await_state("Suspended")
    cluster.until(lambda: not cluster.pods(namespace), "no pod is left")
    job.patch(suspend=False)

    job.await_state("Succeeded")
    assert accuracy(job.launcher_log()) > 0.8


def test_a_pod_without_the_secret_cannot_join(training: Callable[..., Any]) -> None:
    job, books = training()
    dial = ["python3", "-m", "farandole.agent.dial", "--launcher", "job-launcher:7707", "--secret-file", "/tmp/guess"]
    script = f"echo {'0' * 64} > /tmp/guess; exec timeout 8 {' '.join(dial)} --name intruder"
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    intruder = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "intruder"}, "spec": spec}
    job.cluster.apply(intruder, namespace=job.namespace)

    job.cluster.until(lambda: gone(job, "intruder"), "the intruder has given up")
    assert "could not prove" in job.cluster.log(job.namespace, "intruder")
    assert "intruder" not in str(job.status["progress"])
    finish(job, books)


def test_worker_pods_have_no_rights_and_the_launcher_pod_only_its_own_jobs(training: Callable[..., Any]) -> None:
    job, books = training()
    worker = job.pods("worker")[0]["spec"]
    assert worker["automountServiceAccountToken"] is False
    assert not any("serviceaccount" in mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"])
    assert worker["securityContext"]["runAsNonRoot"] is True
    assert worker["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}

    control = job.cluster.control
    launcher = Api(control.url, token_of(job.cluster, job.namespace, "job-launcher"), control.authority)
    core = f"/api/v1/namespaces/{job.namespace}"
    assert launcher.get(f"{core}/configmaps/job-state")
    for path in ("secrets/job-dial", "secrets", "configmaps", "configmaps/job-code", "pods", "pods/job-launcher-0"):
        with pytest.raises(Refused, match="403"):
            launcher.get(f"{core}/{path}")
    with pytest.raises(Refused, match="403"):
        launcher.patch(f"/apis/farandole.dev/v1alpha1/namespaces/{job.namespace}/trainingjobs/job", {"spec": {}})
    with pytest.raises(Refused, match="403"):
        launcher.get("/api/v1/namespaces/default/configmaps/job-state")
    finish(job, books)


def test_a_training_that_fails_is_failed_with_its_report(
    cluster: Cluster, operator: RunningOperator, namespace: str
) -> None:
    cluster.apply(*digits_job("job", "--epochs", "1", "--goal", "2.0"), namespace=namespace)
    job = Watched(cluster, namespace, "job")

    status = job.await_state("Failed")

    assert status["exitCode"] == 1
    assert "exit code 1" in status["reason"]
    cluster.until(lambda: not job.running("worker"), "no worker pod runs any more")
