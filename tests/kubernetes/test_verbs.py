"""The verbs of the command line and `farandole.submit` on a real API server; deleted objects of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from step_books import PLAIN_SCRIPT
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator
from tests.kubernetes.training_jobs import Watched, training_job

import farandole
from farandole.control.jobs.handle import JobFailed
from farandole.control.jobs.status import JobState

pytestmark = pytest.mark.timeout(600)
KINDS = "services,serviceaccounts,roles,rolebindings,networkpolicies,configmaps,secrets"
Verb = Callable[..., str]


@pytest.fixture
def environment(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process, and what it starts, mean the test's namespace of the cluster."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.control.kubeconfig))
    monkeypatch.setenv("FARANDOLE_NAMESPACE", namespace)
    monkeypatch.setenv("FARANDOLE_IMAGE", "none")
    monkeypatch.setenv("FARANDOLE_ON", "kubernetes")


def run(*words: str, code: int = 0) -> str:
    """Run the command line, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + (done.stderr if code else "")


def submitted(tmp_path: Path, name: str) -> str:
    """Submit a training of 1 to 3 workers that ends when a worker finds a file `stop`, and return the job's file."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        Path(PLAIN_SCRIPT)
        .read_text()
        .replace("def main() -> None:", "def main() -> None:\n    print('begins', WORKER)")
    )
    # Where workers write: their code cannot be changed.
    job = {
        "name": name,
        "command": ["python3", "/farandole/code/train.py", "0", "0.05"],
        "workers": {"min": 1, "max": 3, "replicas": 2},
        "workingDirectory": "/tmp",
        "grace": 3,
        "options": {"kubernetes": {"ship": str(tmp_path / "code")}},
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    return str(file)


def test_verbs_run_job_from_submission_to_end(
    cluster: Cluster, operator: RunningOperator, namespace: str, environment: None, tmp_path: Path
) -> None:
    job = Watched(cluster, namespace, "verbs")
    assert run("submit", "--detach", "-f", submitted(tmp_path, "verbs")).strip() == "verbs"
    job.await_size(2)
    (listed,) = json.loads(run("jobs", "--json"))
    assert (listed["name"], listed["state"], listed["wanted"]) == ("verbs", "Running", 2)
    shown = run("status", "verbs")
    assert "verbs-worker-0" in shown and "TrainingJobRunning" in shown
    lines = run("logs", "verbs").splitlines()
    assert {"begins 0", "begins 1"} <= {line.rpartition(":")[2] for line in lines}
    assert all("begins 1" in line for line in run("logs", "verbs", "--rank", "1").splitlines())

    run("scale", "verbs", "3")
    job.await_size(3)
    assert "with 1 to 3 workers" in run("scale", "verbs", "4", code=2)
    run("suspend", "verbs")
    job.await_state("Suspended")
    cluster.until(lambda: not job.pods("worker"), "its pods are gone")
    run("resume", "verbs")
    job.await_size(3)
    following = _Following("logs", "-f", "verbs")
    cluster.until(lambda: "begins" in following.text, "the log is shown", instead=job.story)
    cluster.kill_pod(namespace, job.running("launcher")[-1])
    cluster.until(lambda: "has taken over" in following.text, "it shows the next launcher's, too", 100, job.story)

    run("cancel", "verbs")
    job.await_state("Cancelled")
    cluster.until(lambda: not job.pods("worker"), "its pods are gone")
    assert following.wait() == 0
    assert "is over" in run("suspend", "verbs", code=2)
    assert run("jobs", "--active") == ""


def test_blocked_pods_give_reason_in_status_and_log(
    cluster: Cluster, operator: RunningOperator, namespace: str, environment: None
) -> None:
    cluster.apply(
        # As in an image without farandole: the program ends before any worker runs.
        *training_job("fails", {}, ["train.py"], python="/bin/ls"),
        *training_job("lacks", {}, ["train.py"], template=_template({"envFrom": [{"configMapRef": {"name": "gone"}}]})),
        namespace=namespace,
    )
    fails, lacks = Watched(cluster, namespace, "fails"), Watched(cluster, namespace, "lacks")

    status = fails.await_state("Restarting")
    assert "failed (Error, exit code 2, " in status["reason"]
    assert "made at " in status["reason"] or "another one follows" in status["reason"]
    assert "unrecognized option" in status["failures"][-1]["lines"]
    assert "unrecognized option" in run("logs", "fails")
    following = _Following("logs", "-f", "fails")
    cluster.until(lambda: "unrecognized option" in following.text, "its last lines are shown", 60, fails.story)

    def words() -> str:
        return str(lacks.status.get("reason") or "")

    cluster.until(lambda: "configmap 'gone' not found" in words(), "it says what is missing", 60, words)

    run("cancel", "fails")
    assert following.wait() == 0
    run("cancel", "lacks")


def _template(container: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "image": "none", **container}]}}


class _Following:
    """A command that shows something until it ends."""

    def __init__(self, *words: str) -> None:
        self.text = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "farandole", *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.text += line

    def wait(self) -> int:
        """Return its exit code."""
        code = self._process.wait(60)
        self._thread.join()
        return code


def test_job_is_submitted_from_python(
    cluster: Cluster, operator: RunningOperator, namespace: str, environment: None, tmp_path: Path
) -> None:
    script = "import os, sys; print('given', sys.argv[1:], os.environ['FARANDOLE_WORKER']); sys.exit({})"
    job = farandole.submit(["python3", "-c", script.format(0), "7"], workers=2, name="handled", environment={"A": "b"})
    assert (job.name, job.place) == ("handled", "kubernetes")
    assert job.result(timeout=100).state is JobState.SUCCEEDED
    assert {line.strip().rpartition("given ")[2] for line in job.logs() if "given" in line} == {"['7'] 0", "['7'] 1"}

    failing = farandole.submit(["python3", "-c", script.format(3)], workers=1)
    with pytest.raises(JobFailed) as caught:
        failing.result(timeout=100)
    assert (caught.value.status.state, caught.value.status.exit_code) == (JobState.FAILED, 3)


def test_deleted_objects_of_a_job_are_created_again(
    cluster: Cluster, operator: RunningOperator, namespace: str, environment: None, tmp_path: Path
) -> None:
    run("submit", "--detach", "-f", submitted(tmp_path, "drift"))
    job = Watched(cluster, namespace, "drift")
    job.await_size(2)

    def objects() -> dict[str, Any]:
        mine = ["-n", namespace, "-l", "farandole.dev/job=drift", "-o", "json"]
        found = json.loads(cluster.kubectl("get", KINDS, *mine))["items"]
        return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in found}

    before = objects()
    # What people send along is not the operator's to make again.
    names = [name for name in before if not name.endswith("/drift-code")]
    assert len(names) == 8, names
    (secret,) = [name for name in names if name.startswith("Secret/")]
    account = "ServiceAccount/drift-launcher"

    def is_again(*deleted: str) -> bool:
        now = objects()
        return all(name in now and now[name] != before[name] for name in deleted)

    others = set(names) - {secret, account}
    cluster.kubectl("delete", "-n", namespace, *others)
    cluster.until(lambda: is_again(*others), "all are there again", instead=lambda: str(objects()))
    # Nobody may watch Secrets; a pod that waits for one is noticed.
    cluster.kubectl("delete", "-n", namespace, secret)
    run("scale", "drift", "3")
    job.await_size(3)
    assert is_again(secret)

    # A launcher without its account can write nothing. Another one has the new account, and finds what this one has
    # left: that was written into the new object, and sealed with the new secret, when the third worker came.
    cluster.kubectl("delete", "-n", namespace, account)
    cluster.until(lambda: "has taken over" in job.launcher_log(), "the next launcher goes on", 100, job.story)
    assert is_again(account)
    run("cancel", "drift")
    job.await_state("Cancelled")
