"""The real control plane: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, on loopback only.

All files are in one folder, all processes end with the one that started them. TLS is verified, RBAC is on, anonymous
access is off; tokens of users of the tests are in a file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kubernetes import binaries
from tests.kubernetes.api import Api, Refused, Unanswered
from tests.kubernetes.children import die_with_parent, free_ports, stop
from tests.kubernetes.errors import ClusterError

START_SECONDS = 200.0
_REST_SECONDS = 0.1
SERVICE_ADDRESSES = tuple(f"10.78.0.{number}" for number in range(10, 30))
"""At which pods reach the API server: one for each node."""


class ControlPlane:
    """Four processes and what they know of each other.

    Attributes:
        url: where the API server listens.
        kubeconfig: of an administrator.
        certificate, key: of every server here.
        authority: the certificate that clients trust.

    Args:
        folder: an empty one, for all that is kept.
        schedules: whether pods get nodes.
    """

    def __init__(self, folder: Path, schedules: bool = True) -> None:
        self._folder = folder
        self._schedules = schedules
        port, *others = free_ports(5)
        self._port, self._ports = port, others
        self.url = f"https://127.0.0.1:{port}"
        self.kubeconfig = folder / "kubeconfig"
        self.authority, self.certificate, self.key = folder / "ca.crt", folder / "tls.crt", folder / "tls.key"
        self._token = secrets.token_urlsafe(24)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def api(self) -> Api:
        """A client with all rights."""
        return Api(self.url, self._token, self.authority)

    def start(self) -> None:
        """Start all, and wait until pods can be made.

        Raises:
            ClusterError: something did not start.
        """
        self._make_keys()
        self.kubeconfig.write_text(self.kubeconfig_for(self._token))
        self._start_etcd()
        self.start_api_server()
        self._start_others()
        self._await("the default ServiceAccount", self._has_account)

    def stop(self) -> None:
        """End all, those that need others first."""
        for name in ("scheduler", "controller-manager", "api-server", "etcd"):
            if name in self._processes:
                stop(self._processes.pop(name))

    def kill_api_server(self) -> None:
        """Have no API server; what is kept stays in etcd."""
        process = self._processes.pop("api-server")
        process.kill()
        process.wait()

    def start_api_server(self) -> None:
        """Start it, also after `kill_api_server`, at the same address."""
        etcd = f"http://127.0.0.1:{self._ports[0]}"
        self._run(
            "api-server",
            binaries.program("kube-apiserver"),
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={self.certificate}",
            f"--tls-private-key-file={self.key}",
            f"--client-ca-file={self.authority}",
            f"--cert-dir={self._folder}/certs",
            f"--token-auth-file={self._folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--anonymous-auth=false",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--endpoint-reconciler-type=none",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._folder}/sa.pub",
            f"--service-account-signing-key-file={self._folder}/sa.key",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
            "--v=1",
        )
        self._await("the API server", lambda: self.api.get_text("/readyz") == "ok")

    def delete_from_etcd(self, key: str) -> None:
        """Delete what the API server keeps under a key, behind its back."""
        body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self._ports[0]}/v3/kv/deleterange", body, timeout=15) as answer:
            assert json.load(answer)["deleted"] == "1", f"etcd has no {key}"

    def kubeconfig_for(self, token: str) -> str:
        """Return the kubeconfig of the user with a token."""
        return (
            "apiVersion: v1\nkind: Config\ncurrent-context: local\n"
            f'clusters: [{{name: local, cluster: {{server: "{self.url}", certificate-authority: {self.authority}}}}}]\n'
            f"users: [{{name: user, user: {{token: {token}}}}}]\n"
            "contexts: [{name: local, context: {cluster: local, user: user}}]\n"
        )

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[:2])
        self._run(
            "etcd",
            binaries.program("etcd"),
            f"--data-dir={self._folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=error",
        )

    def _start_others(self) -> None:
        common = [f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1", f"--cert-dir={self._folder}/certs"]
        self._run(
            "controller-manager",
            binaries.program("kube-controller-manager"),
            *common,
            *_closed_door("kube-controller-manager"),
            f"--secure-port={self._ports[2]}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._folder}/sa.key",
            f"--root-ca-file={self.authority}",
            f"--cluster-signing-cert-file={self.authority}",
            f"--cluster-signing-key-file={self._folder}/ca.key",
            # A node that is lost is noticed within seconds: tests have no minutes.
            "--node-monitor-period=1s",
            "--node-monitor-grace-period=6s",
        )
        if not self._schedules:
            return
        self._run(
            "scheduler",
            binaries.program("kube-scheduler"),
            *common,
            *_closed_door("kube-scheduler"),
            f"--secure-port={self._ports[3]}",
            "--leader-elect=false",
        )

    def _has_account(self) -> bool:
        return self.api.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _run(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent
            )

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(Refused, Unanswered):
                if ready():
                    return
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise ClusterError(f"{name} ended with code {process.returncode}:\n{self.last_lines(name)}")
            time.sleep(_REST_SECONDS)
        raise ClusterError(f"{what} is not there after {START_SECONDS:g} s:\n{self.last_lines('api-server')}")

    def last_lines(self, name: str) -> str:
        """Return the end of what one of the servers has written."""
        log = self._folder / f"{name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-10:]) if log.exists() else ""

    def _make_keys(self) -> None:
        folder = self._folder
        addresses = ",".join(f"IP:{each}" for each in ("127.0.0.1", *SERVICE_ADDRESSES))
        (folder / "names").write_text(f"subjectAltName={addresses},DNS:localhost,DNS:kubernetes.default.svc\n")
        new_key = ["-newkey", "rsa:2048", "-nodes"]
        _openssl("genrsa", "-out", folder / "sa.key", "2048")
        _openssl("rsa", "-in", folder / "sa.key", "-pubout", "-out", folder / "sa.pub")
        subject = ["-subj", "/CN=tests-of-farandole"]
        _openssl("req", "-x509", *new_key, "-days", "3", *subject, "-keyout", folder / "ca.key", "-out", self.authority)
        request = folder / "tls.csr"
        _openssl("req", *new_key, "-subj", "/CN=kube-apiserver", "-keyout", self.key, "-out", request)
        signed_by = ["-CA", self.authority, "-CAkey", folder / "ca.key", "-CAcreateserial", "-days", "3"]
        _openssl("x509", "-req", "-in", request, *signed_by, "-extfile", folder / "names", "-out", self.certificate)
        (folder / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')


def _closed_door(name: str) -> list[str]:
    """Return what keeps old servers from listening, on a fixed port and for everybody, as they do by default."""
    told = subprocess.run([binaries.program(name), "--help"], capture_output=True, text=True, timeout=60, check=True)
    return ["--port=0"] if " --port " in told.stdout else []


def _openssl(*words: object) -> None:
    command: Sequence[str] = ["openssl", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ClusterError(f"openssl {words[0]} failed: {done.stderr.strip()}")
