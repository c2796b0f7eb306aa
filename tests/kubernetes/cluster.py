"""The cluster of the tests: a real control plane, and nodes that are processes of this machine."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tests.hosts.switch import Switch
from tests.kubernetes import binaries
from tests.kubernetes.api import Api, Unanswered
from tests.kubernetes.children import die_with_parent, free_ports, stop
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.errors import ClusterError

_ROOT = Path(__file__).resolve().parents[2]
_READY_SECONDS = 60.0
_KNOWN_SECONDS = 30.0
_REST_SECONDS = 0.1
T = TypeVar("T")


class Cluster:
    """A control plane and some nodes, while the context is open.

    Attributes:
        control: the control plane.
        nodes: the names of all nodes that were started, lost ones too.

    Args:
        nodes: how many.
        resources: what each of them has, beside processors, memory and pods.
        volume_delay: seconds after which a changed ConfigMap or Secret reaches the files of a pod.
        schedules: whether pods get nodes.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        resources: Mapping[str, str] | None = None,
        volume_delay: float = 1.0,
        schedules: bool = True,
    ) -> None:
        self._count = nodes
        self._schedules = schedules
        self._node_options = {
            "resources": dict(resources or {"farandole.dev/slots": "8"}),
            "volume_delay": volume_delay,
        }
        self._resources = contextlib.ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self.control: ControlPlane
        self.folder: Path

    def __enter__(self) -> Cluster:
        """Start all.

        Raises:
            ClusterError: something did not start.
        """
        try:
            self.folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="farandole-kube-")))
            self.folder.chmod(0o755)  # Pods of other users than root see their volumes here.
            self._switch = Switch(("pods",))
            self._resources.callback(self._switch.close)
            self.control = ControlPlane(self.folder, self._schedules)
            self._resources.callback(self.control.stop)
            self.control.start()
            self._resources.callback(self._stop_nodes)
            for number in range(1, self._count + 1):
                self.start_node(f"node-{number}")
        except BaseException:
            self._resources.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all, and leave nothing."""
        self._resources.close()

    @property
    def api(self) -> Api:
        """A client with all rights."""
        return self.control.api

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that run."""
        return list(self._processes)

    # --- nodes --------------------------------------------------------------------------------------------------

    def start_node(self, name: str) -> None:
        """Start a node, also one that was lost.

        Raises:
            ClusterError: it does not get ready.
        """
        number = int(name.rpartition("-")[2])
        self._ports.setdefault(name, free_ports(1)[0])
        options = {
            "name": name,
            "number": number,
            "bridge": self._switch.pid,
            "port": self._ports[name],
            "folder": str(self.folder / name),
            "kubeconfig": str(self.control.kubeconfig),
            "certificate": str(self.control.certificate),
            "key": str(self.control.key),
            **self._node_options,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.kubernetes.node", json.dumps(options)],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        self._processes[name] = process
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], _READY_SECONDS)
        if not readable or process.stdout.readline() != b"ready\n":
            raise ClusterError(f"{name} did not get ready:\n{(self.folder / f'{name}.log').read_text()[-2000:]}")

    def lose_node(self, name: str) -> None:
        """Take a node's power away: its pods end at once, and it reports nothing."""
        process = self._processes.pop(name)
        process.kill()
        _reap(process)

    def cut_node(self, name: str) -> None:
        """Cut a node off from all others and from the API server. Its pods continue, unseen."""
        self._processes[name].send_signal(signal.SIGSTOP)
        self._switch.detach(f"n{int(name.rpartition('-')[2])}p")

    def restore_node(self, name: str) -> None:
        """Undo `cut_node`."""
        self._switch.attach(f"n{int(name.rpartition('-')[2])}p", "pods")
        self._processes[name].send_signal(signal.SIGCONT)

    def evict_for_pressure(self, namespace: str, pod: str) -> None:
        """Have the pod's node evict it for want of memory: it is Failed, and stays so until it is deleted."""
        self._ask_node("evict", namespace, pod)

    def evict(self, namespace: str, pod: str) -> None:
        """Ask for an eviction as `kubectl drain` does: the pod is deleted, with its time of grace."""
        body = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        self.api.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)

    def kill_pod(self, namespace: str, pod: str) -> None:
        """Kill all programs of a pod, as the kernel does when memory runs out."""
        self._ask_node("kill", namespace, pod)

    def kill_pods(self, namespace: str, *pods: str) -> None:
        """Kill all programs of several pods at the same moment, as far as that can be."""
        with ThreadPoolExecutor(len(pods)) as threads:
            list(threads.map(lambda pod: self.kill_pod(namespace, pod), pods))

    def _ask_node(self, what: str, namespace: str, pod: str) -> None:
        node = self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["spec"]["nodeName"]
        tls = ssl.create_default_context(cafile=str(self.control.authority))
        connection = http.client.HTTPSConnection("127.0.0.1", self._ports[node], context=tls, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", f"/{what}/{namespace}/{pod}")
            answer = connection.getresponse()
            if answer.status != 200:
                raise ClusterError(f"{what} {pod}: {answer.read().decode()}")

    def _stop_nodes(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            stop(process)
            _reap(process)

    def left_of_pods(self) -> list[str]:
        """Return what pods have left on this machine: processes, folders beside their logs, and wires."""
        folders = [str(path) for path in self.folder.glob("node-*/*") if path.is_dir() and path.name != "logs"]
        return [*self.processes_of_pods(), *folders, *(f"wire {port}" for port in self._switch.ports("n"))]

    def processes_of_pods(self, node: str = "") -> list[str]:
        """Return the processes of all pods, or of a node's, with any parents, recognized by their roots."""
        below = f"{self.folder / node}/" if node else f"{self.folder}/node-"
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It has just ended.
                if (root := os.readlink(process / "root")).startswith(below):
                    found.append(f"process {process.name} in {root}")
        return found

    # --- using it -----------------------------------------------------------------------------------------------

    def kubectl(self, *words: str, stdin: str = "", seconds: float = 60, check: bool = True) -> str:
        """Run kubectl with all rights, and return what it prints.

        Raises:
            ClusterError: it failed, and that was not expected.
        """
        done = subprocess.run(
            # What it remembers of servers is this cluster's only: another one may have had the same port.
            [binaries.program("kubectl"), f"--cache-dir={self.folder}/kubectl", *words],
            env={**os.environ, "KUBECONFIG": str(self.control.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode and check:
            raise ClusterError(f"kubectl {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout + (done.stderr if not check else "")

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> None:
        """Make objects, or change them."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        deadline = time.monotonic() + _KNOWN_SECONDS
        while True:
            try:
                self.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)
                return
            except ClusterError as error:
                # A kind that was just installed is served a little before it is listed.
                if "no matches for kind" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_REST_SECONDS)

    def pods(self, namespace: str, selector: str = "") -> list[Any]:
        """Return the pods of a namespace."""
        query = f"?labelSelector={selector}" if selector else ""
        return self.api.items(f"/api/v1/namespaces/{namespace}/pods{query}")

    def log(self, namespace: str, pod: str, container: str = "") -> str:
        """Return what a container has written."""
        chosen = ("-c", container) if container else ()
        return self.kubectl("logs", "-n", namespace, pod, *chosen)

    def until(
        self, found: Callable[[], T], what: str, seconds: float = 120.0, instead: Callable[[], str] = lambda: ""
    ) -> T:
        """Wait until something is true, and return it.

        Args:
            found: returns what is true once it is.
            what: the fact in words.
            seconds: how long to wait.
            instead: tells how things are when it is not.

        Raises:
            ClusterError: it is not in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Unanswered):
                if result := found():
                    return result
            if time.monotonic() > deadline:
                raise ClusterError(f"after {seconds:g} s it is not true that {what}\n{instead()}")
            time.sleep(_REST_SECONDS)


def _reap(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.stdout.close()
    process.wait()
