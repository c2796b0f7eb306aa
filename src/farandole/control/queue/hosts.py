"""The hosts of a queue: their text form, and whether they answer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from farandole.control.jobs.errors import Refused
from farandole.control.launcher.job.host_list import parse_hosts, slots_of
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import is_ssh, user_options
from farandole.control.queue.model import QueueHost
from farandole.errors import SpecError

PROBE_SECONDS = 10.0
ANSWER_SECONDS = 8.0
# A single failed probe may be a busy moment.
MISSES = 2


def parse_queue_hosts(text: str) -> tuple[QueueHost, ...]:
    """Read hosts such as `h1:4,h2:4`, or `h1:4/a100` with the type of their slots.

    Raises:
        Refused: the text has another form.

    Example:
        >>> [(host.name, host.slots, host.type) for host in parse_queue_hosts("h1:4,h2:8/a100")]
        [('h1', 4, 'slot'), ('h2', 8, 'a100')]
    """
    hosts = []
    for part in filter(None, text.split(",")):
        name, slash, type_ = part.partition("/")
        try:
            found = parse_hosts(name, "--hosts")
        except SpecError as error:
            raise Refused(error.message, f"{error.hint}; write --hosts h1:4,h2:4") from None
        hosts += [QueueHost(host.name, slots_of(host), type_ if slash else "slot") for host in found]
    if not hosts:
        raise Refused("no host is named", "such as --hosts h1:4,h2:4, or localhost:2")
    for host in hosts:
        if host.slots < 1:
            raise Refused(f"host {host.name} has no slots", "such as h1:4; a host without a number has one slot")
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise Refused(f"host {name} is named twice", "name it once, with all its slots")
    return tuple(hosts)


def added(hosts: Sequence[QueueHost], more: Sequence[QueueHost]) -> tuple[QueueHost, ...]:
    """Return the hosts with others added; a host that exists already gets the new number of slots."""
    new = {host.name: host for host in more}
    kept = [new.pop(host.name, host) for host in hosts]
    return (*kept, *new.values())


def drained(hosts: Sequence[QueueHost], names: Sequence[str]) -> tuple[QueueHost, ...]:
    """Return the hosts, with these marked as draining: they get no new work.

    Raises:
        Refused: there is no such host.
    """
    _check(hosts, names)
    return tuple(replace(host, draining=True) if host.name in names else host for host in hosts)


def removed(hosts: Sequence[QueueHost], names: Sequence[str]) -> tuple[QueueHost, ...]:
    """Return the hosts without these.

    Raises:
        Refused: there is no such host.
    """
    _check(hosts, names)
    return tuple(host for host in hosts if host.name not in names)


def _check(hosts: Sequence[QueueHost], names: Sequence[str]) -> None:
    known = [host.name for host in hosts]
    for name in names:
        if name not in known:
            hint = f"it has {', '.join(known)}" if known else "it has none: farandole queue hosts add h1:4"
            raise Refused(f"the queue has no host {name}", hint)


def is_here(name: str) -> bool:
    """Return whether a host name means this machine."""
    label = name.rpartition("@")[2]
    if label in ("localhost", socket.gethostname(), socket.gethostname().partition(".")[0], "::1"):
        return True
    return label.startswith("127.")


class Prober:
    """Probes the other hosts of the queue.

    Args:
        ssh: options of the ssh connections to other hosts.
    """

    def __init__(self, ssh: SshOptions) -> None:
        self._ssh = ssh
        self._misses: dict[str, int] = {}
        self.looked_at: dict[str, float] = {}
        """When each host was last probed, on the monotonic clock, in seconds: the beginning of the probe."""

    async def probe(self, names: Sequence[str], *, certain: bool = False) -> Mapping[str, bool]:
        """Return, for each host, whether it is up.

        Args:
            names: the hosts to probe.
            certain: count one failed probe as down, because there is other evidence.
        """
        others = [name for name in names if not is_here(name)]
        begun = time.monotonic()
        answers = dict(zip(others, await asyncio.gather(*map(self._answers, others)), strict=True))
        up = {name: True for name in names if is_here(name)}
        for name, answered in answers.items():
            self._misses[name] = 0 if answered else self._misses.get(name, 0) + 1
            self.looked_at[name] = begun
            up[name] = answered or (self._misses[name] < MISSES and not certain)
        return up

    async def _answers(self, name: str) -> bool:
        limits = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={ANSWER_SECONDS / 2:.0f}")
        options = (*user_options(self._ssh), *limits) if is_ssh(self._ssh) else ()
        words = (self._ssh.program, *options, name, "true")
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            return await asyncio.wait_for(process.wait(), ANSWER_SECONDS) == 0
        except (OSError, TimeoutError, asyncio.TimeoutError):
            return False
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()
