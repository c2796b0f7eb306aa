"""The hosts of an elastic job: those that discovery found, and those added or removed by hand."""

from __future__ import annotations

from collections.abc import Iterable

from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


class HostSet:
    """The set of a job's hosts.

    Attributes:
        hosts: the hosts by the names shown to people.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._found: dict[str, Host] = {}
        self._added: dict[str, Host] = {}
        self._removed: set[str] = set()

    @property
    def found(self) -> tuple[Host, ...]:
        """The hosts of the last discovery."""
        return tuple(self._found.values())

    def find(self, hosts: Iterable[Host]) -> None:
        """Record a new answer of discovery, which replaces the last one."""
        self._found = {host.label: host for host in hosts}
        self._combine()

    def add(self, host: Host) -> None:
        """Add a host, or change its number of slots, regardless of discovery."""
        self._added[host.label] = host
        self._removed.discard(host.label)
        self._combine()

    def remove(self, label: str) -> None:
        """Remove a host; if discovery finds it, it stays removed until it has disappeared and come back.

        Raises:
            SpecError: the job does not have this host.
        """
        if label not in self.hosts:
            known = ", ".join(self.hosts)
            raise SpecError(
                f"host {label} is not one of the job's", f"its hosts are: {known}" if known else "it has no hosts"
            )
        self._added.pop(label, None)
        self._removed.add(label)
        self._combine()

    def _combine(self) -> None:
        self._removed &= self._found.keys()
        both = {**self._found, **self._added}
        self.hosts = {label: host for label, host in both.items() if label not in self._removed}
