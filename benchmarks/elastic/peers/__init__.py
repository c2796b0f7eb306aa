"""One file for each library: how its job is started, which processes it has beside workers, how a worker is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.jobs import Job, Setting
from benchmarks.elastic.peers import farandole, torchft, torchrun


@dataclass(frozen=True)
class Peer:
    """A library.

    Attributes:
        name: the name in tables.
        missing: a function that returns why it cannot be used on this machine, or None.
        job: a function that makes one of its jobs, in a folder.
        events: the events that it is measured in; None: all.
    """

    name: str
    missing: Callable[[], str | None]
    job: Callable[[Setting, Path], Job]
    events: tuple[str, ...] | None = None

    def takes_part(self, event: str) -> bool:
        """Return whether it is measured in an event."""
        return self.events is None or event in self.events


_WITHOUT_DAEMON = ("kill", "kill-large", "stop", "join", "launcher", "idle")

PEERS = (
    Peer("farandole", farandole.missing, farandole.FarandoleJob),
    Peer("torchft", torchft.missing, torchft.TorchftJob, _WITHOUT_DAEMON),
    Peer("torchrun", torchrun.missing, torchrun.TorchrunJob, _WITHOUT_DAEMON),
    Peer("torchrun-defaults", torchrun.missing, torchrun.DefaultTorchrunJob, events=("kill",)),
)
