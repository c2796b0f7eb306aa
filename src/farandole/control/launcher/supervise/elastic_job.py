"""What can be asked of an elastic job, and changed, while it runs: see `control.Job`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from farandole.control.jobs.view import JobView
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.slots import slot_events as events
from farandole.control.launcher.slots.phrases import named, who_leaves
from farandole.control.launcher.slots.slot_policy import describe
from farandole.control.launcher.slots.slot_state import living, most_members
from farandole.control.launcher.supervise.control import HostRow, Status
from farandole.control.launcher.supervise.elastic_policy import ElasticPolicy
from farandole.control.launcher.supervise.job_view import view_of
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.wording import count
from farandole.errors import SpecError


class ElasticJob:
    """Answers questions about an elastic job, and changes its hosts and its size.

    Args:
        supervisor: of the job.
        policy: of the job.
    """

    def __init__(self, supervisor: Supervisor, policy: ElasticPolicy) -> None:
        self._supervisor = supervisor
        self._policy = policy
        self.stop = supervisor.stop
        self.kill = supervisor.kill
        self.pause = supervisor.pause
        self.send_signal = supervisor.send_signal

    def add_host(self, host: Host, slots: int) -> str:
        """Let workers run on another host as well, or on more slots of one that the job has; say what happens now."""
        self._policy.hosts.add(Host(host.name, slots, host.python))
        self._policy.hosts_changed()
        return f"host {host.label} has {count(slots, 'slot')} now; workers start there as far as the job needs them"

    def remove_host(self, name: str) -> str:
        """Take a host away at once, with the workers that live there; say what happens now.

        Raises:
            SpecError: the job does not have it.
        """
        here = self._take_away(name)
        self._policy.happened(events.HostRemoved(name))
        self._policy.hosts_changed()
        return f"host {name} is removed, with {named(here) if here else 'no worker'}"

    def drain_host(self, name: str) -> str:
        """Take a host away when the workers there have finished their step and left; say what happens now.

        Raises:
            SpecError: the job does not have it.
        """
        here = self._take_away(name)
        self._policy.hosts_changed()
        return f"host {name}: {who_leaves(self._policy.decider.state, here)}; then the host is free"

    def _take_away(self, name: str) -> list[int]:
        self._policy.hosts.take_away(name)
        return [worker for worker, (site, _) in living(self._policy.decider.state).items() if site.label == name]

    def scale(self, workers: int) -> str:
        """Let the job have at most so many workers; say what happens now.

        Raises:
            SpecError: it cannot go on with so few.
        """
        least = self._policy.decider.state.policy.min_size
        if workers < least:
            raise SpecError(
                f"the job cannot go on with {count(workers, 'worker')}", f"it was started with --min-np {least}"
            )
        return self.resize(least, workers)

    def resize(self, min_size: int, max_size: int | None) -> str:
        """Let the job have another size; say what happens now."""
        self._supervisor.service.resize(min_size, most_members(max_size))
        self._policy.happened(events.Resized(min_size, max_size))
        return f"from {min_size} to {'any number of' if max_size is None else max_size} workers from now on"

    def schedule_batch(self, samples: int) -> str:
        """Let a training whose batch adapts itself have that one; 0: as it chooses. Say what happens now."""
        self._supervisor.service.schedule_batch(samples)
        return f"a batch of {samples} from now on, if it adapts itself" if samples else "a batch as the job chooses"

    def list_hosts(self) -> Sequence[HostRow]:
        """Return all hosts that the job has or waits for."""
        now = time.monotonic()
        return [
            HostRow(
                site.label,
                site.size,
                tuple(slot.worker for slot in site.slots if slot.worker is not None),
                describe(site, now),
            )
            for site in self._policy.decider.state.sites
        ]

    def view(self) -> JobView:
        """Return all that can be seen of the job, but what its workers print."""
        view = view_of(self._supervisor)
        return msgspec.structs.replace(view, state=self._policy.messages.waits_for)

    def status(self) -> Status:
        """Return how the job is."""
        workers = self._supervisor.workers
        return {
            "size": len(workers.world),
            "generation": workers.generation,
            "waits_for": self._policy.messages.waits_for,
            "steps_per_second": self._supervisor.status.steps_per_second,
            "measures": self._supervisor.measures,
            "scheduled_batch": self._supervisor.service.scheduled_batch,
        }
