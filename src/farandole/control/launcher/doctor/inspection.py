"""Inspects hosts: this machine directly, others through ssh."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from farandole.base.wire.encoding import decode_json
from farandole.control.agent.inspect import inspect
from farandole.control.agent.inspect.facts import Facts
from farandole.control.agent.inspect.software import IMPORT_SECONDS
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.launcher.targets.not_started import explain
from farandole.control.launcher.targets.ssh import by_hand, ssh_command

AT_ONCE = 16
HOST_SECONDS = 20.0
_MODULE = ("-m", "farandole.control.agent.inspect")


@dataclass(frozen=True)
class Silence:
    """The reason why a host could not be inspected, and what to do about it."""

    why: str
    hint: str = ""


Inspect = Callable[[Sequence[Host]], dict[str, Facts | Silence]]


def inspect_hosts(hosts: Sequence[Host], ssh: SshOptions, *, try_import: bool = False) -> dict[str, Facts | Silence]:
    """Inspect several hosts at once.

    Args:
        hosts: the hosts to inspect; those that are this machine are inspected without ssh.
        ssh: the ssh options for reaching the others.
        try_import: whether to import the frameworks there as well.

    Returns:
        By label, in the given order: the facts about the host, or why they are not known.
    """
    names = LocalNames()

    def ask(host: Host) -> Facts | Silence:
        return inspect(try_import=try_import) if names.has(host) else _ask(host, ssh, try_import)

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return dict(zip((host.label for host in hosts), pool.map(ask, hosts), strict=True))


def _ask(host: Host, ssh: SshOptions, try_import: bool) -> Facts | Silence:
    seconds = HOST_SECONDS + (IMPORT_SECONDS if try_import else 0)
    command = ssh_command(host, ssh, (*_MODULE, "--import") if try_import else _MODULE)
    asked_at = time.time()
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds
        )
    except OSError as error:
        return Silence(
            f"{ssh.program} cannot be started: {error}", "install openssh-client, or name another program with --ssh"
        )
    except subprocess.TimeoutExpired:
        return Silence(f"no answer within {seconds:g} s", f"check how long it takes: {by_hand(host, ssh, 'true')}")
    if done.returncode != 0:
        return Silence(*explain(host, done.stderr, ssh))
    return _read(host, done.stdout, asked_at, time.time())


def _read(host: Host, told: str, asked_at: float, answered_at: float) -> Facts | Silence:
    # Output of the shell's start-up files comes first.
    answer = next((line for line in reversed(told.splitlines()) if line.startswith("{")), "")
    try:
        facts = decode_json(answer, Facts)
    except msgspec.DecodeError as error:
        return Silence(f"its answer cannot be read: {error}", f"install the same version of farandole on {host.name}")
    clock = msgspec.structs.replace(facts.clock, ahead=_ahead(facts.clock.now, asked_at, answered_at))
    return msgspec.structs.replace(facts, clock=clock)


def _ahead(told: float, asked_at: float, answered_at: float) -> float:
    """Return the minimum lead, in seconds, of a remote clock that was read between two local times."""
    if told > answered_at:
        return told - answered_at
    return min(told - asked_at, 0.0)
