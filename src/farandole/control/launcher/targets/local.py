"""Processes on this machine: how to start an agent here, and which host names mean this machine."""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence

from farandole.base.wire.interfaces import addresses
from farandole.control.launcher.job.host_list import Host

AGENT = ("-m", "farandole.control.agent")
TAKE_OVER = ("-m", "farandole.control.agent.take_over")
# Seconds that a name server may take to say whether a name means this machine.
RESOLVE_SECONDS = 1.0
_RESOLVED_AT_ONCE = 64


class LocalNames:
    """Decides which host names mean this machine."""

    def __init__(self) -> None:
        self._names = {"localhost", socket.gethostname(), socket.getfqdn() if "." in socket.gethostname() else ""}
        self._addresses: set[str] | None = None

    def has(self, host: Host) -> bool:
        """Return whether a host is this machine. A name with a user is not, because the workers run as another user."""
        if "@" in host.name:
            return False
        if host.name in self._names:
            return True
        try:
            found = {str(each[4][0]) for each in socket.getaddrinfo(host.name, None, type=socket.SOCK_STREAM)}
        except OSError:
            return False  # The name may be defined in ssh's configuration.
        return any(each.startswith("127.") or each == "::1" for each in found) or bool(found & self._own())

    def which(self, hosts: Sequence[Host]) -> list[bool]:
        """Return for each host whether it is this machine.

        Name servers are not waited for: this machine's names are in local files.
        """
        local = dict.fromkeys(hosts, False)
        todo: queue.SimpleQueue[Host] = queue.SimpleQueue()
        for host in hosts:
            todo.put(host)

        def resolve() -> None:
            while True:
                try:
                    host = todo.get_nowait()
                except queue.Empty:
                    return
                local[host] = self.has(host)

        deadline = time.monotonic() + RESOLVE_SECONDS
        threads = [threading.Thread(target=resolve, daemon=True) for _ in range(min(len(hosts), _RESOLVED_AT_ONCE))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [local[host] for host in hosts]

    def _own(self) -> set[str]:
        if self._addresses is None:
            self._addresses = {each.address for each in addresses()}
        return self._addresses


def local_command(python: str, module: Sequence[str] = AGENT) -> list[str]:
    """Return the command that starts an agent, or another module of farandole, on this machine."""
    return [python or sys.executable, *module]
