"""The end of a large job: the processor time of the launcher's decisions on goodbyes and on ends of processes.

    python -m benchmarks.job_end 1024 10240

All workers leave their world, and then all of their processes end with exit code 0. The decisions are those of a
launcher, in its own queue. Connections, agents, output and the failover state are left out. Times are those of one run
on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.job_events import SUCCEEDED, Event, WorkerEnded
from farandole.control.launcher.slots.job_state import JobState, Site, Slot, SlotPolicy
from farandole.control.launcher.supervise.decisions import Decisions
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Joined, JoinedTogether, Left
from farandole.control.roster.fixed import FixedState

WORKERS_PER_HOST = 8


def begun(size: int, *, elastic: bool) -> JobState:
    """Return a job whose first world has begun."""
    hosts = {worker: f"node-{worker // WORKERS_PER_HOST:05d}" for worker in range(size)}
    slots = [Slot(worker % WORKERS_PER_HOST, worker) for worker in range(size)]
    sites = tuple(
        Site(hosts[first], WORKERS_PER_HOST, tuple(slots[first : first + WORKERS_PER_HOST]), phase="ready")
        for first in range(0, size, WORKERS_PER_HOST)
    )
    roster = (
        ElasticState(Limits(1, size), expected=frozenset(hosts), hosts=hosts) if elastic else FixedState((None,) * size)
    )
    joins = tuple(Joined(worker, "", host, host, trained=True) for worker, host in hosts.items())
    state, _, _ = decide(JobState(SlotPolicy(), roster, sites, size), JoinedTogether(joins), 0.0)
    return state


def goodbyes(size: int) -> list[Event]:
    """Return the goodbyes of all workers."""
    return [Left(worker, 1) for worker in range(size)]


def ends(size: int) -> list[Event]:
    """Return the ends of all workers' processes."""
    return [WorkerEnded(worker, SUCCEEDED, "", "exited with code 0") for worker in range(size)]


async def seconds_of(decisions: Decisions, events: Sequence[Event], together: int) -> float:
    """Return the processor time of the decisions on events, of which `together` happen in each turn of the loop."""
    began = time.process_time()
    for first in range(0, len(events), together):
        for event in events[first : first + together]:
            decisions.happened(event, soon=True)
        await asyncio.sleep(0)
    return time.process_time() - began


async def measure(decisions: Decisions, size: int, together: int) -> tuple[float, float]:
    """Return the processor times of all goodbyes and of all ends, in seconds."""
    times = await seconds_of(decisions, goodbyes(size), together), await seconds_of(decisions, ends(size), together)
    decisions.close()
    return times


def main() -> None:
    """Print a table for the sizes that were given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[1024])
    parser.add_argument("--together", type=int, nargs="*", default=[1, 8, 64], help="number of events in a turn")
    arguments = parser.parse_args()
    print("| workers | job | events at once | goodbyes, s | ends, s |\n|---:|---|---:|---:|---:|")
    for size in arguments.sizes:
        for kind in ("fixed", "elastic"):
            for together in arguments.together:
                state = begun(size, elastic=kind == "elastic")
                decisions = Decisions(state, lambda before, event, actions: None, lambda reason: None)
                left, ended = asyncio.run(measure(decisions, size, together))
                print(f"| {size:,} | {kind} | {together:,} | {left:.3f} | {ended:.3f} |", flush=True)


if __name__ == "__main__":
    main()
