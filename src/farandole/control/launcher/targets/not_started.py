"""Reasons why an agent did not start on a host, and hints: messages of ssh, a shell or Python, explained."""

from __future__ import annotations

import re
import shlex
import sys

from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.installation import install_command
from farandole.control.launcher.targets.local import AGENT
from farandole.control.launcher.targets.ssh import by_hand, user_options

_OTHER_PYTHON = "or use another Python: --python {host}=/path/to/python"
# A pattern, whose named groups are used in the other two; the problem; what to do.
_EXPLANATIONS = (
    (
        r"host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not known here, or has changed",
        "connect once by hand and compare the fingerprint: {ssh}; or, in a network that you trust, add: "
        "--ssh-option StrictHostKeyChecking=accept-new",
    ),
    (
        r"permission denied(?: \(|, please)|too many authentication failures",
        "it does not let you log in without a password",
        "install your key there: {copy_id}; a key with a passphrase needs ssh-agent; --ssh-identity FILE selects "
        "another key",
    ),
    (
        r"could not resolve hostname|name or service not known|nodename nor servname",
        "no host has this name",
        "check the spelling, or add it to ~/.ssh/config or /etc/hosts",
    ),
    (
        r"port (?P<port>\d+): connection refused",
        "no ssh server listens on its port {port}",
        "start sshd on it, or give the port that it listens on: --ssh-port N",
    ),
    (
        r"connection refused",
        "no ssh server listens there",
        "start sshd on it; --ssh-port N if it listens on another port",
    ),
    (
        r"timed out|no route to host|network is unreachable|host is down",
        "it does not answer",
        "check that it is up and can be reached from here: {ssh} true",
    ),
    (
        r"farandole: Python (?P<version>[23]\.[0-9]\.\d+) at (?P<path>.+) cannot run it",
        "its Python, {path}, is version {version}, which is too old for farandole",
        "use one from 3.10 up: --python {host}=/path/to/python",
    ),
    (
        r"farandole: Python (?P<version>\S+) at (?P<path>.+) cannot run it: .*"
        r"No module named '(?P<module>\w+)\.(?P<part>[^']+)'",
        "its Python, {path}, is version {version}, and cannot import {module}.{part}: {module} was installed there "
        "for another "
        "version of Python",
        "install it for this one: {install}; " + _OTHER_PYTHON,
    ),
    (
        r"farandole: Python (?P<version>\S+) at (?P<path>.+) cannot run it: .*No module named '(?P<module>\w+)'",
        "its Python, {path}, is version {version}, and lacks {module}, which farandole needs",
        "install it there: {install}; " + _OTHER_PYTHON,
    ),
    (
        r"farandole: Python (?P<version>\S+) at (?P<path>.+) cannot run it: (?P<why>.*)",
        "its Python, {path} ({version}), cannot run farandole: {why}",
        "reinstall farandole there: {install}; " + _OTHER_PYTHON,
    ),
    (
        r"no module named '?farandole",
        "its Python, {python}, lacks farandole",
        "install it there: {install}; " + _OTHER_PYTHON,
    ),
    (
        r"no such file or directory|not found|permission denied|unknown command",
        "there is no Python at {python}",
        "install the same environment there, " + _OTHER_PYTHON,
    ),
)


def explain(host: Host, said: str, options: SshOptions) -> tuple[str, str]:
    """Turn the messages of an agent's failed start into a problem and a hint.

    Args:
        host: the host on which it did not start.
        said: the messages of ssh, a shell or Python.
        options: the ssh options, which are part of the hint.
    """
    python = host.python or sys.executable
    for pattern, problem, hint in _EXPLANATIONS:
        if found := re.search(pattern, said, re.IGNORECASE):
            words = {
                "host": host.name,
                "python": python,
                "ssh": by_hand(host, options),
                "copy_id": shlex.join(["ssh-copy-id", *user_options(options), host.name]),
                "install": install_command(host, options, python),
                **found.groupdict(),
            }
            return problem.format(**words), hint.format(**words)
    last = said.strip().splitlines()[-1:] or ["there was no message"]
    return f"the agent did not start: {last[0]}", f"try: {by_hand(host, options, shlex.join([python, *AGENT]))}"
