"""How an agent is started on a host: as a child on this machine, through ssh on any other; and why that failed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from farandole.launcher.job.host_list import Host
from farandole.launcher.job.ssh_and_ship import SshOptions
from farandole.launcher.targets.local import AGENT

CONNECT_SECONDS = 10


def ssh_command(host: Host, options: SshOptions, module: Sequence[str] = AGENT) -> list[str]:
    """Return the command that starts an agent, or another module of ours, on another host.

    Nothing secret is in it: all that an agent must know comes over its standard input.

    Example:
        >>> ssh_command(Host("h1", python="/opt/py/bin/python"), SshOptions(port=2222))[-3:]
        ['2222', 'h1', 'cd / && exec /opt/py/bin/python -m farandole.agent']
    """
    # In / there are no files that Python could take for the modules it looks for.
    remote = f"cd / && exec {shlex.join([host.python or sys.executable, *module])}"
    command = [options.program]
    if "ssh" in Path(options.program).name:
        # The user's options come first: ssh takes the first of each that it finds.
        for option in (*options.options, "BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}"):
            command += ["-o", option]
        command += ["-T"]
        command += ["-i", options.identity] if options.identity else []
        command += ["-p", str(options.port)] if options.port else []
    return [*command, host.name, remote]


# What ssh, a shell or Python say, and what it means: a pattern, the problem, what to do.
_EXPLANATIONS = (
    (
        r"host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not known here, or has changed",
        "connect once by hand and compare the fingerprint: ssh {host}; or, in a network that you trust: "
        "--ssh-option StrictHostKeyChecking=accept-new",
    ),
    (
        r"permission denied|too many authentication failures",
        "it does not let you in without a password",
        "let it know your key: ssh-copy-id {host}; a key with a passphrase needs ssh-agent; --ssh-identity FILE picks "
        "another key",
    ),
    (
        r"could not resolve hostname|name or service not known|nodename nor servname",
        "there is no host of that name",
        "check the spelling, or add it to ~/.ssh/config or /etc/hosts",
    ),
    (
        r"connection refused",
        "no ssh server listens there",
        "start sshd on it; --ssh-port N if it listens on another port",
    ),
    (
        r"timed out|no route to host|network is unreachable|host is down",
        "it does not answer",
        "is it up, and can it be reached from here? try: ssh {host} true",
    ),
    (
        r"no module named '?farandole",
        "its Python has no farandole",
        "install it there: {python} -m pip install farandole=={version}",
    ),
    (
        r"no such file or directory|not found|permission denied: .*python|unknown command",
        "there is no Python at {python}",
        "install the same environment there, or say where Python is: --python {host}=/path/to/python",
    ),
)


def explain(host: Host, said: str, version: str) -> tuple[str, str]:
    """Turn what was said when an agent did not start into a problem and what to do about it."""
    words = {"host": host.name, "python": host.python or sys.executable, "version": version}
    for pattern, problem, hint in _EXPLANATIONS:
        if re.search(pattern, said, re.IGNORECASE):
            return problem.format(**words), hint.format(**words)
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return f"the agent did not start: {last[0]}", f"try: {shlex.join(['ssh', host.name, words['python'], *AGENT])}"
