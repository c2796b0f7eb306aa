"""Starting agents on other hosts, and the meaning of failures."""

from __future__ import annotations

import subprocess
import sys

import pytest

import farandole
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets import installation
from farandole.control.launcher.targets.installation import install_command
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.launcher.targets.not_started import explain
from farandole.control.launcher.targets.ssh import ssh_command

AGENT = f"cd / && exec {sys.executable} -m farandole.control.agent"
OPTIONS = "-o A=1 -i 'my key' -p 2222"
SSH = f"ssh {OPTIONS} h1"
INSTALL = f"{SSH} '/opt/py -m pip install farandole=={farandole.__version__}'"
OURS = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T"]


@pytest.mark.parametrize(
    ("host", "options", "expected"),
    [
        (Host("h1"), SshOptions(), ["ssh", *OURS, "h1", AGENT]),
        (
            Host("me@h1"),
            SshOptions(port=2222, identity="key", options=("ConnectTimeout=3",)),
            ["ssh", "-o", "ConnectTimeout=3", *OURS, "-i", "key", "-p", "2222", "me@h1", AGENT],
        ),
        (Host("pod"), SshOptions(program="/etc/mpi/kubexec.sh"), ["/etc/mpi/kubexec.sh", "pod", AGENT]),
        (
            Host("h1", python="/my env/python"),
            SshOptions(),
            ["ssh", *OURS, "h1", "cd / && exec '/my env/python' -m farandole.control.agent"],
        ),
    ],
)
def test_command_for_ssh(host: Host, options: SshOptions, expected: list[str]) -> None:
    assert ssh_command(host, options) == expected


@pytest.mark.parametrize(
    ("said", "problem", "hint"),
    [
        ("Host key verification failed.\r\n", "host key is not known", f"compare the fingerprint: {SSH};"),
        ("root@h1: Permission denied (publickey,password).", "without a password", f"ssh-copy-id {OPTIONS} h1;"),
        ("ssh: Could not resolve hostname h1: Name or service not known", "no host has this name", "spelling"),
        (
            "ssh: connect to host h1 port 2222: Connection refused",
            "no ssh server listens on its port 2222",
            "--ssh-port",
        ),
        ("ssh: connect to host h1 port 22: No route to host", "does not answer", f"{SSH} true"),
        ("bash: line 1: /opt/py: No such file or directory", "no Python at /opt/py", "--python h1="),
        ("bash: line 1: /opt/py: Permission denied", "no Python at /opt/py", "--python h1="),
        ("/opt/py: No module named farandole", "its Python, /opt/py, lacks farandole", INSTALL),
        (
            "farandole: Python 3.12.1 at /opt/py cannot run it: ModuleNotFoundError: No module named 'msgspec._core'",
            "its Python, /opt/py, is version 3.12.1, and cannot import msgspec._core: msgspec was installed there",
            INSTALL,
        ),
        (
            "farandole: Python 3.12.1 at /opt/py cannot run it: ModuleNotFoundError: No module named 'msgspec'",
            "its Python, /opt/py, is version 3.12.1, and lacks msgspec, which farandole needs",
            INSTALL,
        ),
        (
            "farandole: Python 3.9.18 at /opt/py cannot run it: ModuleNotFoundError: No module named 'msgspec'",
            "its Python, /opt/py, is version 3.9.18, which is too old",
            "use one from 3.10 up: --python h1=",
        ),
        ("something odd\nhappened", "did not start: happened", f"try: {SSH} '/opt/py -m farandole.control.agent'"),
        ("", "there was no message", f"try: {SSH}"),
    ],
)
def test_failures_of_ssh_are_explained(said: str, problem: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed_from", lambda: None)
    told = explain(Host("h1", python="/opt/py"), said, SshOptions(port=2222, identity="my key", options=("A=1",)))
    assert problem in told[0] and hint in told[1]


@pytest.mark.parametrize("modules", [{"msgspec"}, {"farandole.control.agent.agent"}])
def test_unsuitable_python_is_named(modules: set[str]) -> None:
    block = f"import sys; sys.modules.update(dict.fromkeys({modules}))"
    run = "import runpy; runpy.run_module('farandole.control.agent', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", f"{block}; {run}"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    problem, _ = explain(Host("h1"), done.stderr, SshOptions())
    assert sys.executable in problem and sys.version.split()[0] in problem


def test_unpublished_version_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "installed_from", lambda: "/my src")
    copied = install_command(Host("me@fd00::1"), SshOptions(port=2222), "/opt/py", ("farandole", "yaml"))
    assert copied.split(" && ") == [
        f"{sys.executable} -m pip wheel --no-deps --wheel-dir /tmp/farandole-wheel '/my src'",
        "ssh -p 2222 me@fd00::1 'mkdir -p /tmp/farandole-wheel'",
        "scp -P 2222 /tmp/farandole-wheel/farandole-*.whl 'me@[fd00::1]:/tmp/farandole-wheel/'",
        "ssh -p 2222 me@fd00::1 '/opt/py -m pip install /tmp/farandole-wheel/farandole-*.whl PyYAML'",
    ]
    monkeypatch.setattr(installation, "installed_from", lambda: "/w/farandole-1-py3-none-any.whl")
    assert install_command(Host("h1"), SshOptions(), "/opt/py").startswith(
        "ssh h1 'mkdir -p /tmp/farandole-wheel' && scp /w/farandole-1-py3-none-any.whl h1:/tmp/farandole-wheel/ && "
    )
    assert install_command(Host("h1"), None, "python3", ("wandb",)) == "python3 -m pip install wandb"


def test_names_of_this_machine() -> None:
    names = LocalNames()
    assert [name for name in ("localhost", "127.0.0.1", "::1") if not names.has(Host(name))] == []
    assert [name for name in ("x.invalid", "me@localhost", "192.0.2.77") if names.has(Host(name))] == []
