"""Command lines for reaching other hosts: the ssh that starts an agent there, and the ssh that a person can type."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.local import AGENT

CONNECT_SECONDS = 10


def ssh_command(host: Host, options: SshOptions, module: Sequence[str] = AGENT) -> list[str]:
    """Return the command that starts an agent, or another module of farandole, on another host.

    It contains no secrets: everything that an agent needs is sent to its standard input.

    Example:
        >>> ssh_command(Host("h1", python="/opt/py/bin/python"), SshOptions(port=2222))[-3:]
        ['2222', 'h1', 'cd / && exec /opt/py/bin/python -m farandole.control.agent']
    """
    # In / there are no files that Python could mistake for modules.
    remote = f"cd / && exec {shlex.join([host.python or sys.executable, *module])}"
    command = [options.program]
    if is_ssh(options):
        # The user's options come first: ssh uses the first value of each option.
        for option in (*options.options, "BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}"):
            command += ["-o", option]
        command += ["-T", *_key_and_port(options)]
    return [*command, host.name, remote]


def is_ssh(options: SshOptions) -> bool:
    """Return whether the program accepts ssh's options."""
    return "ssh" in Path(options.program).name


def by_hand(host: Host, options: SshOptions, command: str = "") -> str:
    """Return the command line with which a person can reach a host in the same way as the launcher.

    Example:
        >>> by_hand(Host("h1"), SshOptions(port=2222), "python3 -V")
        "ssh -p 2222 h1 'python3 -V'"
    """
    words = [options.program, *(user_options(options) if is_ssh(options) else ()), host.name]
    return shlex.join([*words, command] if command else words)


def user_options(options: SshOptions) -> list[str]:
    """Return the user's ssh options, in a form that ssh-copy-id also accepts."""
    return [*(word for option in options.options for word in ("-o", option)), *_key_and_port(options)]


def _key_and_port(options: SshOptions) -> list[str]:
    key = ["-i", options.identity] if options.identity else []
    return [*key, "-p", str(options.port)] if options.port else key
