"""The requests about a running elastic job, and changes of it: see `control.ControlledJob`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.discovery.discovery import Discovery
from farandole.control.launcher.job.host_list import Host, slots_of
from farandole.control.launcher.slots import job_events as events
from farandole.control.launcher.slots.job_state import living
from farandole.control.launcher.slots.phrases import named, who_leaves
from farandole.control.launcher.slots.slot_rules import describe
from farandole.control.launcher.supervise.control import HostRow
from farandole.control.launcher.supervise.job_view import SupervisedJob
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.roster.events import Resized
from farandole.control.roster.membership import ANY_SIZE
from farandole.errors import SpecError


class ElasticJob(SupervisedJob):
    """Answers requests about an elastic job, and changes its hosts and its size.

    Args:
        supervisor: the supervisor of the job.
        discovery: the host discovery, which has given its first answer.
    """

    def __init__(self, supervisor: Supervisor, discovery: Discovery) -> None:
        super().__init__(supervisor)
        self._discovery = discovery
        self.pause = supervisor.pause
        self.send_signal = supervisor.send_signal

    async def begin(self, take_over: Callable[[], Awaitable[None]] | None) -> None:
        """Begin the job, or continue it after another launcher.

        Args:
            take_over: takes over the job that another launcher has left; None starts a new job.

        Raises:
            NothingLeft: no part of the previous launcher's job is alive.
            SpecError: the job cannot begin; nothing was started.
        """
        if take_over is None:
            self._supervisor.workers.prepare_folders()
            self._hosts_found(self._discovery.hosts)
        else:
            await take_over()
        self._supervisor.background.spawn(self._discovery.watch(self._hosts_found))

    def _hosts_found(self, found: Sequence[Host]) -> None:
        self._supervisor.hosts.known.find(found)
        self._hosts_changed()

    def _hosts_changed(self) -> None:
        hosts = self._supervisor.hosts.known.hosts.values()
        self._supervisor.happened(events.HostsChanged(tuple((host.label, slots_of(host)) for host in hosts)))

    def add_host(self, host: Host, slots: int) -> str:
        """Let workers run on another host, or on more slots of a host that the job has; return the consequences."""
        self._supervisor.hosts.known.add(replace(host, slots=slots))
        self._hosts_changed()
        return f"host {host.label} has {count(slots, 'slot')} now; workers start there as far as the job needs them"

    def remove_host(self, name: str) -> str:
        """Remove a host at once, with its workers; return the consequences.

        Raises:
            SpecError: the job does not have the host.
        """
        here = self._remove(name)
        self._supervisor.happened(events.HostRemoved(name))
        self._hosts_changed()
        return f"host {name} is removed, with {named(here) if here else 'no worker'}"

    def drain_host(self, name: str) -> str:
        """Remove a host once its workers have finished their step and left; return the consequences.

        Raises:
            SpecError: the job does not have the host.
        """
        here = self._remove(name)
        self._hosts_changed()
        return f"host {name}: {who_leaves(self._supervisor.state, here)}; then the host is free"

    def _remove(self, name: str) -> list[int]:
        self._supervisor.hosts.known.remove(name)
        return [worker for worker, (site, _) in living(self._supervisor.state).items() if site.label == name]

    def scale(self, workers: int) -> str:
        """Limit the number of workers; return the consequences.

        Raises:
            SpecError: the job cannot continue with so few workers.
        """
        least = self._supervisor.state.limits.min_size
        if workers < least:
            raise SpecError(f"the job cannot continue with {count(workers, 'worker')}", f"its minimum is {least}")
        return self.resize(least, workers)

    def resize(self, min_size: int, max_size: int | None) -> str:
        """Change the limits of the job's size; return the consequences."""
        self._supervisor.happened(Resized(min_size, ANY_SIZE if max_size is None else max_size))
        return f"{self._supervisor.state.limits.in_words} from now on"

    def schedule_batch(self, samples: int) -> str:
        """Set the batch of a training with an adaptive batch size (0: the job chooses); return the consequences."""
        self._supervisor.service.schedule_batch(samples)
        return (
            f"a batch of {samples} from now on, if its size is adaptive" if samples else "a batch of the job's choice"
        )

    def list_hosts(self) -> Sequence[HostRow]:
        """Return all hosts that the job has or waits for."""
        now = time.monotonic()
        return [
            HostRow(site.label, site.size, site.workers, describe(site, now)) for site in self._supervisor.state.sites
        ]
