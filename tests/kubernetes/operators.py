"""The operator in a cluster of the tests: installed as people install it, and run as a process with its own rights."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import Cluster

NAMESPACE = "farandole-system"
_ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/farandole-operator"


class RunningOperator:
    """One operator's process.

    Args:
        name: of its files.
        url: at which it finds the API server; "": where that is.
    """

    def __init__(self, cluster: Cluster, name: str, *flags: str, url: str = "") -> None:
        self._cluster, self._flags = cluster, flags
        self._config = account_config(cluster, name, url)
        self._log = cluster.folder / f"{name}.log"
        self.start()

    def start(self) -> None:
        """Start it, also again."""
        words = ["kubernetes", "operator", "--no-deliver-kubectl", "--lease-namespace", NAMESPACE]
        words += ["--lease-seconds", "6"]
        words += [] if "--port" in self._flags else ["--port", "0"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "farandole", *words, *self._flags],
                env={**os.environ, "KUBECONFIG": str(self._config)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def peak_bytes(self) -> int:
        """The most memory that its process has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])

    def kill(self) -> None:
        """Kill it: it says nothing, and gives no Lease back."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it in good order, and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(30)

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text()

    @property
    def leads(self) -> bool:
        """Say whether it has become the one that acts."""
        return "this operator leads" in self.log


def install(cluster: Cluster, *flags: str) -> None:
    """Install all but the Deployment's pods: there are no images here, so operators run as processes."""
    farandole(cluster, "kubernetes", "install", "--replicas", "0", *flags)


def farandole(cluster: Cluster, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command line with all rights."""
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words],
        env={**os.environ, "KUBECONFIG": str(cluster.control.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=100,
        check=check,
    )


def account_config(cluster: Cluster, name: str, url: str = "") -> Path:
    """Return a kubeconfig with which one is the operator's account, and has its rights and no more."""
    import yaml

    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    token = cluster.api.create(f"{_ACCOUNT}/token", request)["status"]["token"]
    config = yaml.safe_load(cluster.control.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["clusters"][0]["cluster"]["server"] = url or cluster.control.url
    path = cluster.folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def operator(cluster: Cluster, name: str = "operator", *flags: str, url: str = "") -> Iterator[RunningOperator]:
    """Run an operator in the block; what it wrote is shown if something in the block fails."""
    one = RunningOperator(cluster, name, *flags, url=url)
    try:
        yield one
    except BaseException:
        print(one.log[-6000:])
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            assert one.stop() == 0, one.log[-3000:]


def mpi_job(cluster: Cluster, namespace: str, name: str) -> Any:
    """Return an MPIJob as it is."""
    return cluster.api.get(f"/apis/kubeflow.org/v2beta1/namespaces/{namespace}/mpijobs/{name}")


def holds(cluster: Cluster, namespace: str, name: str, kind: str) -> bool:
    """Say whether a condition of an MPIJob is True."""
    found = mpi_job(cluster, namespace, name).get("status", {}).get("conditions", [])
    return any(item["type"] == kind and item["status"] == "True" for item in found)


def wait_ended(cluster: Cluster, namespace: str, name: str, seconds: float = 90) -> None:
    """Wait as people do, until a job has succeeded; one that failed is told at once."""
    end = time.monotonic() + seconds
    while not holds(cluster, namespace, name, "Succeeded"):
        job = mpi_job(cluster, namespace, name)
        logs = cluster.kubectl("logs", "-n", namespace, f"{name}-launcher", "--tail=30", check=False)
        assert not holds(cluster, namespace, name, "Failed"), f"{job['status']}\n{logs}"
        assert time.monotonic() < end, f"{job.get('status')}\n{logs}"
        time.sleep(0.3)
