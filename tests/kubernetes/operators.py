"""The operator in a cluster of the tests: installed as people install it, and run as a process with its own rights."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.kubernetes.children import die_with_parent, free_ports
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.node.container import Security, root_script

from farandole.control.kubernetes.deploy import manifests
from farandole.control.kubernetes.deploy.manifests import Install

NAMESPACE = "farandole-system"
_ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/farandole-operator"
_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class RunningOperator:
    """One operator's process, run as the Deployment runs it.

    It has the Deployment's user, group, capabilities and environment, a root that it cannot write to, its account's
    token where a pod has it, and no HOME. Only the network is this machine's, so it listens on loopback.

    Args:
        name: of its files.
        url: at which it finds the API server; "": where that is.
    """

    def __init__(self, cluster: Cluster, name: str, *flags: str, url: str = "") -> None:
        self._flags, self._name = flags, name
        self._folder = cluster.folder / name
        self._server = (url or cluster.control.url).removeprefix("https://")
        self._log = cluster.folder / f"{name}.log"
        self._account = _account_files(cluster, self._folder / "account")
        (self.port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        """Start it, also again."""
        pod = manifests.workload(Install())[0]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        security = Security.of(pod, container)
        # What the Deployment says of these is of its image, port and Lease.
        words = ["kubernetes", "operator", "--no-deliver-kubectl", "--lease-seconds", "6"]
        words += ["--address", "127.0.0.1", "--port", str(self.port)]
        binds = [(str(self._account), _ACCOUNT_FOLDER, True)]
        root = self._folder / "root"
        root.mkdir(exist_ok=True)
        script = root_script(root, self._folder / "begun", binds, security.read_only_root)
        command = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", self._name, *security.prefix()]
        host, _, port = self._server.rpartition(":")
        (namespace,) = container["env"]
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            namespace["name"]: NAMESPACE,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, sys.executable, "-m", "farandole", *words, *self._flags],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def readiness(self) -> tuple[int, str]:
        """Return the status code and the text that its readiness probe gets; 0 if there is no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

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
        """Return whether it has become the one that acts."""
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


def account_config(cluster: Cluster, name: str) -> Path:
    """Return a kubeconfig with which one is the operator's account, and has its rights and no more."""
    path = cluster.folder / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(cluster.control.kubeconfig_for(_token(cluster)))
    return path


def _account_files(cluster: Cluster, folder: Path) -> Path:
    """Make the folder that a pod of the operator's account has for it, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(_token(cluster))
    (folder / "namespace").write_text(NAMESPACE)
    (folder / "ca.crt").write_bytes(cluster.control.authority.read_bytes())
    return folder


def _token(cluster: Cluster) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    return str(cluster.api.create(f"{_ACCOUNT}/token", request)["status"]["token"])


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
    """Return whether a condition of an MPIJob is True."""
    found = mpi_job(cluster, namespace, name).get("status", {}).get("conditions", [])
    return any(item["type"] == kind and item["status"] == "True" for item in found)


def wait_ended(cluster: Cluster, namespace: str, name: str, seconds: float = 180) -> None:
    """Wait as a user would until a job has succeeded; report at once if it failed."""
    end = time.monotonic() + seconds
    while not holds(cluster, namespace, name, "Succeeded"):
        job = mpi_job(cluster, namespace, name)
        logs = cluster.kubectl("logs", "-n", namespace, f"{name}-launcher", "--tail=30", check=False)
        assert not holds(cluster, namespace, name, "Failed"), f"{job['status']}\n{logs}"
        assert time.monotonic() < end, f"{job.get('status')}\n{logs}"
        time.sleep(0.3)
