"""The messages about an elastic job: ends of workers, how the job continues, and how long that took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from farandole.base.display.wording import count
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.slots.phrases import named
from farandole.control.launcher.supervise.workers import Worker, Workers
from farandole.control.roster.events import HAS_LEFT, Announce, Departure, Hold

MOST_NAMED = 3
# Seconds to wait for the line about the next world, which also reports workers that have ended.
TOLD_SECONDS = 1.0
# Seconds that the line about a new world waits for the reasons of its losses.
ENDS_SECONDS = 0.5
# Seconds after which a wait of the job is reported.
WAIT_SECONDS = 10.0


class Messages:
    """Prints messages about a job, once enough is known for one line.

    Args:
        console: the terminal that messages are written to.
        workers: the workers of the job.
        state: returns the state of the job.
    """

    def __init__(self, console: Console, workers: Workers, state: Callable[[], JobState]) -> None:
        self._state = state
        self._hold = Hold("")
        self._waits_since = 0.0
        self._console = console
        self._workers = workers
        self._timer: asyncio.TimerHandle | None = None
        self._in_order = asyncio.Lock()

    @property
    def waits_for(self) -> str:
        """The reason why the job waits; "" if it does not wait."""
        return self._hold.reason

    async def world(self, world: Announce, seconds: float) -> None:
        """Report a world that has just begun, after `seconds` without a world."""
        lost = [self._workers.by_number[each.worker] for each in world.lost if each.worker in self._workers.by_number]
        for worker in lost:
            worker.told = True
        async with self._in_order:
            try:
                await asyncio.wait_for(asyncio.gather(*(worker.over.wait() for worker in lost)), ENDS_SECONDS)
            except (TimeoutError, asyncio.TimeoutError):
                pass  # Then the observation of the other workers must suffice.
            over = self._state().end is not None
            self._console.say(
                world_message(world, seconds, self._workers.host_of, self._workers.how_it_ended, over=over)
            )

    async def end(self, worker: Worker, world: Sequence[int]) -> None:
        """Report a worker that has failed, unless the line about the next world reports it."""
        if worker.number in world:
            await asyncio.sleep(TOLD_SECONDS)
        if not worker.told:
            worker.told = True
            state = self._state()
            over = state.end is not None or state.closing
            self._console.say(end_message(worker, world, self.waits_for, time.monotonic(), over=over))

    def waits(self, hold: Hold) -> None:
        """Report the reason of a long wait; a hold of no kind ends the wait."""
        if (hold.kind, hold.arrivals) != (self._hold.kind, self._hold.arrivals):
            self._waits_since = time.monotonic()
        self._hold = hold
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if hold.kind:
            self._timer = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._report_wait)

    def _report_wait(self) -> None:
        so_far = duration(time.monotonic() - self._waits_since)
        most = duration(self._hold.seconds)
        self._console.say(f"farandole: the job {self.waits_for} ({so_far} so far, {most} at most)")


def take_over_message(workers: int, hosts: int, seconds: float, lost: int) -> str:
    """Return the line of a launcher that has taken over the job of a killed one.

    Args:
        workers: number of live workers.
        hosts: number of their hosts.
        seconds: seconds for which they had no launcher.
        lost: bytes of output that were dropped meanwhile.
    """
    where = f"{count(workers, 'worker')} on {count(hosts, 'host')} {'goes' if workers == 1 else 'go'} on"
    missing = f"; {lost} bytes of the output printed meanwhile are lost" if lost else ""
    return f"farandole: the launcher was killed; another one has taken over after {duration(seconds)}: {where}{missing}"


def end_message(worker: Worker, world: Sequence[int], waits_for: str, now: float, *, over: bool = False) -> str:
    """Return the line for a worker that has failed, and after which no new world has begun yet.

    Args:
        worker: the worker, whose end is known.
        world: the worker numbers of the latest world.
        waits_for: the reason why the job waits; "" if it does not.
        now: the current time on the monotonic clock, in seconds.
        over: whether the job is about to end.
    """
    name = f"worker {worker.number} on {worker.host}"
    waits = f"the job {waits_for.partition('. ')[0]}" if waits_for else "the job is about to end" if over else ""
    if worker.number in world:
        if over:
            return f"farandole: rank {world.index(worker.number)} ({name}) {worker.end}; {waits}"
        then = waits or "the others are about to go on"
        ago = duration(now - worker.record.exit_time)
        return f"farandole: rank {world.index(worker.number)} ({name}) {worker.end}; {then} ({ago} so far)"
    size = len(world)
    then = waits or (f"{count(size, 'worker')} {'goes' if size == 1 else 'go'} on" if world else "the job goes on")
    if worker.was_member:
        return f"farandole: {name} {worker.end} after it had left the world; {then}"
    lived = duration(worker.record.exit_time - worker.started_at)
    return f"farandole: {name} {worker.end} before it was in a world, {lived} after its start; {then}"


def world_message(
    world: Announce,
    seconds: float,
    where: Callable[[int], str],
    how: Callable[[Departure], str],
    *,
    over: bool = False,
) -> str:
    """Return the line for a world that has just begun.

    Args:
        world: the world, as it was announced.
        seconds: seconds since the previous world was abandoned; for the first one, since the job began.
        where: returns the current or last host of a worker.
        how: returns how the process of a lost worker ended; "" if unknown.
        over: whether the job has ended since.

    Example:
        >>> lost = (Departure(2, 5, "closed its connections"),)
        >>> world = Announce(4, (), (), (0, 1, 6), (0, 1, -1), lost)
        >>> world_message(world, 0.023, lambda worker: "h1", lambda loss: "was killed by SIGKILL")[:49]
        'farandole: rank 2 (worker 5 on h1) was killed by '
        >>> world_message(world, 0.023, lambda worker: "h1", lambda loss: "was killed by SIGKILL")[49:]
        'SIGKILL; worker 6 on h1 joins as rank 2; 3 workers go on as generation 4 (23 ms)'
    """
    lost = [
        f"rank {each.rank} (worker {each.worker} on {where(each.worker)}){how_in_words(how(each) or each.how)}"
        for each in world.lost
    ]
    finished = [
        f"rank {each.rank} (worker {each.worker} on {where(each.worker)}) {each.how}" for each in world.finished
    ]
    done = [*_shortened(finished, "have finished"), _no_more_workers(world.finished)] if finished else []
    newcomers = [rank for rank, before in enumerate(world.previous) if before < 0]
    first = world.generation == 1
    joined = [] if first else [_joins(world.workers, newcomers, where)] if newcomers else []
    size = len(world.workers)
    begin = "began" if over else "begins" if size == 1 else "begin"
    go_on = "went on" if over else "goes on" if size == 1 else "go on"
    what = f"{count(size, 'worker')} {begin if first else go_on} as generation {world.generation}"
    return f"farandole: {'; '.join([*_shortened(lost, 'were lost'), *done, *joined, what])} ({duration(seconds)})"


def _no_more_workers(finished: Sequence[Departure]) -> str:
    open_ends = [each for each in finished if each.how == HAS_LEFT]
    unless = f" unless {'it' if len(finished) == 1 else 'one of them'} fails" if open_ends else ""
    return f"no worker is started any more{unless}"


def how_in_words(how: str) -> str:
    """Format how a worker was lost, to follow its name.

    Example:
        >>> how_in_words("was killed by SIGKILL"), how_in_words("its process ended without saying goodbye")
        (' was killed by SIGKILL', ': its process ended without saying goodbye')
    """
    how = how.partition(", so ")[0]  # The rest is only useful with the traceback.
    return f": {how}" if how.startswith(("it ", "its ")) else f" {how}"


def _joins(workers: Sequence[int], ranks: Sequence[int], where: Callable[[int], str]) -> str:
    numbers = [workers[rank] for rank in ranks]
    hosts = ", ".join(dict.fromkeys(map(where, numbers)))
    if len(ranks) == 1:
        return f"{named(numbers)} on {hosts} joins as rank {ranks[0]}"
    return f"{named(numbers)} on {hosts} join as ranks {', '.join(map(str, ranks))}"


def _shortened(events: Sequence[str], what: str) -> list[str]:
    if len(events) <= MOST_NAMED:
        return list(events)
    return [*events[:MOST_NAMED], f"{len(events) - MOST_NAMED} more {what}"]


def duration(seconds: float) -> str:
    """Format a duration for people.

    Example:
        >>> duration(0.0234), duration(3.21), duration(75)
        ('23 ms', '3.2 s', '75 s')
    """
    if seconds < 0.001:
        return "less than 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
