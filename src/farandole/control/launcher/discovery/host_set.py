"""The hosts of an elastic job: those that are found, and what was added and taken away by hand."""

from __future__ import annotations

from collections.abc import Iterable

from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


class HostSet:
    """Which hosts a job has.

    Attributes:
        hosts: by what people call them.
    """

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._found: dict[str, Host] = {}
        self._added: dict[str, Host] = {}
        self._removed: set[str] = set()

    @property
    def found(self) -> tuple[Host, ...]:
        """Those that were found, the last time."""
        return tuple(self._found.values())

    def find(self, hosts: Iterable[Host]) -> None:
        """Record the hosts that are found now, which are all there are."""
        self._found = {host.label: host for host in hosts}
        self._combine()

    def add(self, host: Host) -> None:
        """Have another host, or another number of slots on one, whatever is found."""
        self._added[host.label] = host
        self._removed.discard(host.label)
        self._combine()

    def take_away(self, label: str) -> None:
        """Have a host no more; if it is one that is found, not before it has gone and come back.

        Raises:
            SpecError: the job does not have it.
        """
        if label not in self.hosts:
            known = ", ".join(self.hosts)
            raise SpecError(f"host {label} is not one of the job's", f"they are: {known}" if known else "it has none")
        self._added.pop(label, None)
        self._removed.add(label)
        self._combine()

    def _combine(self) -> None:
        self._removed &= self._found.keys()
        both = {**self._found, **self._added}
        self.hosts = {label: host for label, host in both.items() if label not in self._removed}
