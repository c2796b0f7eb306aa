"""Numbers the slots that each job has on a host: a slot may be a GPU, which no other job may use. Pure.

Policies and the handover only count slots. A slot keeps its number as long as a job holds it, because a worker uses the
GPU that the number stands for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from farandole.control.queue.model import QueueHost, QueueJob, SlotNumbers
from farandole.control.scheduler.handover import larger


def numbered(jobs: Mapping[str, QueueJob], hosts: Sequence[QueueHost]) -> dict[str, QueueJob]:
    """Return the jobs, each with a number for each slot that it has or holds.

    A job releases its last slots first, as its launcher does. There is a free number for each new slot, unless the host
    now has fewer slots than are in use; then some numbers are used twice.
    """
    sizes = {host.name: host.slots for host in hosts}
    wanted = {name: larger(job.held, job.slots) if job.phase.has_attempt else {} for name, job in jobs.items()}
    kept = {
        name: {host: job.numbered[host].numbers[:count] for host, count in wanted[name].items() if host in job.numbered}
        for name, job in jobs.items()
    }
    used = {host: Counter(each for own in kept.values() for each in own.get(host, ())) for host in sizes}
    after = {}
    for name, job in jobs.items():
        places = {}
        for host, count in wanted[name].items():
            size = sizes.get(host, 0)
            numbers = list(kept[name].get(host, ()))
            while size and len(numbers) < count:
                numbers.append(min(range(size), key=lambda number, host=host: (used[host][number], number)))  # type: ignore[misc]
                used[host][numbers[-1]] += 1
            if numbers:
                places[host] = SlotNumbers(tuple(numbers), size or job.numbered[host].count)
        after[name] = job if places == job.numbered else replace(job, numbered=places)
    return after
