"""How agents are started elsewhere, and what it means when they are not."""

from __future__ import annotations

import sys

import pytest

from farandole.launcher.job.host_list import Host
from farandole.launcher.job.ssh_and_ship import SshOptions
from farandole.launcher.targets.local import LocalNames
from farandole.launcher.targets.ssh import explain, ssh_command

AGENT = f"cd / && exec {sys.executable} -m farandole.agent"
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
            ["ssh", *OURS, "h1", "cd / && exec '/my env/python' -m farandole.agent"],
        ),
    ],
)
def test_the_command(host: Host, options: SshOptions, expected: list[str]) -> None:
    assert ssh_command(host, options) == expected


@pytest.mark.parametrize(
    ("said", "problem", "hint"),
    [
        ("Host key verification failed.\r\n", "host key is not known", "ssh h1"),
        ("root@h1: Permission denied (publickey,password).", "without a password", "ssh-copy-id h1"),
        ("ssh: Could not resolve hostname h1: Name or service not known", "no host of that name", "spelling"),
        ("ssh: connect to host h1 port 22: Connection refused", "no ssh server", "--ssh-port"),
        ("ssh: connect to host h1 port 22: No route to host", "does not answer", "ssh h1 true"),
        ("bash: line 1: /opt/py: No such file or directory", "no Python at /opt/py", "--python h1="),
        ("/opt/py: No module named farandole", "has no farandole", "/opt/py -m pip install farandole==1.2"),
        ("something odd\nhappened", "did not start: happened", "try: ssh h1"),
        ("", "it said nothing", "try: ssh h1"),
    ],
)
def test_what_it_means(said: str, problem: str, hint: str) -> None:
    told = explain(Host("h1", python="/opt/py"), said, "1.2")
    assert problem in told[0] and hint in told[1]


def test_names_of_this_machine() -> None:
    names = LocalNames()
    assert [name for name in ("localhost", "127.0.0.1", "::1") if not names.has(Host(name))] == []
    assert [name for name in ("x.invalid", "me@localhost", "192.0.2.77") if names.has(Host(name))] == []
