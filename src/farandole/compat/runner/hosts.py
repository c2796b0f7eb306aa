"""`horovod.runner.common.util.hosts`: hosts, slots, and the places of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farandole.control.launcher.job import host_list as launcher_hosts
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.plan.make import place_workers
from farandole.errors import SpecError


@dataclass(frozen=True)
class HostInfo:
    """A host and its slots."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Read `name:slots`.

        Raises:
            ValueError: it has another form.
        """
        (host,) = parse_hosts(host_string)
        return host


@dataclass
class SlotInfo:
    """The place of one worker."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Return the numbers in Horovod's order, separated by commas."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size, self.cross_rank, self.cross_size)
        return ",".join(map(str, numbers))


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Read `name:slots,name:slots`.

    Raises:
        ValueError: a host has another form.

    Example:
        >>> parse_hosts("a:2,b:1")
        [HostInfo(hostname='a', slots=2), HostInfo(hostname='b', slots=1)]
    """
    return [HostInfo(host.name, _slots_of(host, hosts_string)) for host in launcher_hosts.parse_hosts(hosts_string)]


def _slots_of(host: Host, where: str) -> int:
    if host.slots is None:
        raise SpecError(launcher_hosts.INVALID, f"{where}: {host.name} has no number of slots")
    return host.slots


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Read the same; return the names in order, and the slots by name."""
    found = parse_hosts(hosts)
    return [host.hostname for host in found], {host.hostname: host.slots for host in found}


def parse_host_files(filename: str) -> str:
    """Read a file of lines `name slots=N` and return them as `name:N,name:N`.

    Blank lines, and text after a `#`, are ignored.

    Raises:
        ValueError: a line has another form, there is no host at all, or the file cannot be read.
    """
    hosts = launcher_hosts.read_host_file(Path(filename))
    return ",".join(f"{_written(host.name)}:{_slots_of(host, filename)}" for host in hosts)


def _written(name: str) -> str:
    return f"[{name}]" if ":" in name else name


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Return each rank's place: hosts are filled in order, with consecutive ranks.

    Args:
        hosts: the hosts with free slots.
        min_num_proc: the minimum number of workers.
        max_num_proc: the maximum number of workers; None: one for each slot.

    Raises:
        ValueError: there are too few slots.
    """
    room = [Host(host.hostname, host.slots) for host in hosts]
    slots = sum(host.slots for host in hosts)
    size = max(min_num_proc, slots if max_num_proc is None else min(slots, max_num_proc))
    return [
        SlotInfo(place.hostname, rank, place.local_rank, place.cross_rank, size, place.local_size, place.cross_size)
        for rank, place in enumerate(place_workers(room, size))
    ]
