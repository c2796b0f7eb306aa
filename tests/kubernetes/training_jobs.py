"""TrainingJobs in tests: what they train, and how they get on."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from step_books import PLAIN_SCRIPT, SCRIPT, Books
from tests.kubernetes.cluster import Cluster

from farandole.control.kubernetes.training_job.own_names import CODE_FOLDER

TRAINING_JOBS = "/apis/farandole.dev/v1alpha1/namespaces/{}/trainingjobs"


def book_keeping_job(name: str, books: Path, *, torch: bool = False, pause: float = 0.05, **spec: Any) -> list[Any]:
    """Return a job that writes down in `books` which samples each step has used, and the ConfigMap with its code.

    It trains until `Books.stop`.

    Args:
        torch: with PyTorch, whose import takes seconds; otherwise a number is trained.
        pause: seconds of each step.
    """
    books.mkdir(parents=True, exist_ok=True)
    books.chmod(0o777)
    for folder in books.parents:
        folder.chmod(folder.stat().st_mode | 0o111)  # Pods are other users.
    mount = {"name": "books", "mountPath": "/books"}
    template = {
        "spec": {
            "containers": [{"name": "worker", "image": "none", "volumeMounts": [mount]}],
            "volumes": [{"name": "books", "hostPath": {"path": str(books)}}],
        }
    }
    script, arguments = (SCRIPT, ["--pause", f"{pause}"]) if torch else (PLAIN_SCRIPT, ["0", f"{pause}"])
    command = [f"{CODE_FOLDER}/train.py", *arguments]
    code = {"train.py": Path(script).read_text()}
    return training_job(name, code, command, template=template, workingDirectory="/books", **spec)


def training_job(name: str, code: dict[str, str], command: list[str], **spec: Any) -> list[Any]:
    """Return a TrainingJob of 1 to 3 workers, and the ConfigMap with its code."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-code"}, "data": code}
    body = {
        "command": ["python3", *command],
        "workers": {"min": 1, "max": 3, "replicas": 3},
        "image": "none",
        "ship": {"configMap": f"{name}-code"},
        "grace": 10,
        "nodeLossSeconds": 1,
        **spec,
    }
    job = {"apiVersion": "farandole.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": body}
    return [config, job]


class Watched:
    """A job that a test watches."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        self._path = f"{TRAINING_JOBS.format(namespace)}/{name}"

    @property
    def status(self) -> dict[str, Any]:
        """Its status."""
        return dict(self.cluster.api.get(self._path).get("status") or {})

    def patch(self, **spec: Any) -> None:
        """Change its spec."""
        self.cluster.api.patch(self._path, {"spec": spec})

    def pods(self, role: str) -> list[Any]:
        """Return its pods of a role that have not been told to end, the oldest first."""
        found = self.cluster.pods(self.namespace, f"farandole.dev/job={self.name},farandole.dev/role={role}")
        living = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(living, key=lambda pod: int(pod["metadata"]["labels"]["farandole.dev/index"]))

    def running(self, role: str) -> list[str]:
        """Return the names of its pods of a role that run."""
        return [pod["metadata"]["name"] for pod in self.pods(role) if pod["status"].get("phase") == "Running"]

    def ready(self, role: str) -> list[str]:
        """Return the names of its pods of a role that are ready."""
        return [pod["metadata"]["name"] for pod in self.pods(role) if _is_ready(pod)]

    def await_state(self, state: str, seconds: float = 150) -> dict[str, Any]:
        """Return its status when it is in a state."""

        def there() -> dict[str, Any] | None:
            status = self.status
            if status.get("state") == "Failed" and state != "Failed":
                raise AssertionError(f"{self.name} has failed: {self.story()}")
            return status if status.get("state") == state else None

        return self.cluster.until(there, f"{self.name} is {state}", seconds, self.story)

    def await_size(self, size: int, seconds: float = 150) -> None:
        """Wait until this number of workers train."""

        def there() -> bool:
            return (self.status.get("progress") or {}).get("size") == size

        self.cluster.until(there, f"{size} workers of {self.name} train", seconds, self.story)

    def await_steps(self, books: Books, more: int, size: int | None = None, seconds: float = 150) -> None:
        """Wait until this number of further steps are done, by this number of workers if one is given."""
        goal = int(books.newest()["step"]) + more

        def done() -> bool:
            newest = books.newest()
            return bool(newest["step"] >= goal and size in (None, newest["size"]))

        self.cluster.until(done, f"{size or 'some'} workers take {more} steps more", seconds, self.story)

    def story(self) -> str:
        """Return all that may tell why something is not as it should be."""
        pods = self.cluster.pods(self.namespace)
        told = [f"{pod['metadata']['name']}: {pod['status'].get('phase')}" for pod in pods]
        logs = [
            self.cluster.kubectl("logs", "-n", self.namespace, each["metadata"]["name"], check=False) for each in pods
        ]
        gone = sorted(
            self.cluster.folder.glob(f"node-*/logs/{self.namespace}.*"), key=lambda path: path.stat().st_mtime
        )
        logs += [f"{path.name}, which is gone:\n{path.read_text(errors='replace')}" for path in gone]
        operator = self.cluster.folder / "operator.log"
        last = operator.read_text()[-3000:] if operator.exists() else ""
        return "\n".join([json.dumps(self.status), *told, *(log[-4000:] for log in logs), last])

    def launcher_log(self) -> str:
        """Return what its launcher pods have printed that are still there."""
        pods = self.cluster.pods(self.namespace, f"farandole.dev/job={self.name},farandole.dev/role=launcher")
        return "".join(
            self.cluster.kubectl("logs", "-n", self.namespace, pod["metadata"]["name"], check=False) for pod in pods
        )


def _is_ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def longest_pause(books: Books, begin: float, end: float) -> float:
    """Return the longest time without a step, in seconds, between two moments (in seconds since 1970)."""
    lines = [line for lines in books.read().values() for line in lines if "at" in line]
    times = sorted({line["step"]: line["at"] for line in sorted(lines, key=lambda line: -line["at"])}.values())
    pairs = itertools.pairwise(times)
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=0.0)


def token_of(cluster: Cluster, namespace: str, account: str) -> str:
    """Return a token of a ServiceAccount."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    return str(cluster.api.create(path, request)["status"]["token"])
