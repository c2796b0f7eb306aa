"""The steps that workers have recorded, and what they say about an event. Pure, except for the reader of their files.

A worker has a file of its own. It appends one record for each step, when the step is finished: that is when its
optimizer has changed the weights. All clocks are the machine's monotonic one, so times of different processes compare.
"""

from __future__ import annotations

import os
import statistics
import struct
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".steps"
RECORD = struct.Struct("<qqqq")
"""The record of one step: nanoseconds, number, size, rank."""

GIVEN_UP = 0
"""The size that a worker records for a step that it computed and then dropped."""


class Step(NamedTuple):
    """One step that one worker has finished. Steps are ordered by time."""

    time: int
    """The time of its end, in nanoseconds of the monotonic clock."""
    number: int
    """The number of the step, as the library counts."""
    size: int
    """The size of the world that made it, or `GIVEN_UP`."""
    rank: int
    """The rank of the worker in that world."""
    pid: int
    """The id of the worker's process."""


class Reader:
    """Reads what workers append to their files in a folder, each record once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def read(self) -> list[Step]:
        """Return the steps that are new since the last call, in the order of time."""
        found: list[Step] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                # There are many files of workers that have ended, and they do not grow any more.
                if entry.name.endswith(SUFFIX) and entry.stat().st_size > self._read.get(entry.name, 0):
                    found += self._read_file(entry.name)
        return sorted(found)

    def _read_file(self, name: str) -> list[Step]:
        begin = self._read.get(name, 0)
        with (self._folder / name).open("rb") as file:
            file.seek(begin)
            data = file.read()
        # A record is written in one call, but a reader may still see a part of it.
        whole = data[: len(data) - len(data) % RECORD.size]
        self._read[name] = begin + len(whole)
        return [Step(*record, pid=int(name.removesuffix(SUFFIX))) for record in RECORD.iter_unpack(whole)]


def committed(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that were not given up."""
    return [step for step in steps if step.size != GIVEN_UP]


def next_step(steps: Sequence[Step], when: int, victim: int, survivors: Collection[int]) -> Step | None:
    """Return the first step after an event that survivors made without the victim.

    The victim may have done its part of one more step than it noted. So a step is without it when the world is smaller
    than it was, or when its number is two or more above the victim's last.

    Args:
        steps: of all workers, before and after the event.
        when: the event was, in nanoseconds.
        victim: the process that was killed or stopped.
        survivors: the processes that were in the same world.
    """
    done = committed(steps)
    before = [step for step in done if step.pid == victim and step.time <= when]
    if not before:
        return None
    last = max(before)
    after = [step for step in done if step.time > when and step.pid in survivors]
    return min((step for step in after if step.size < last.size or step.number >= last.number + 2), default=None)


def next_step_of_anyone(steps: Sequence[Step], when: int, known: Collection[int]) -> Step | None:
    """Return the first step after an event of a process that did not live before it: all had to be started again."""
    return min((step for step in committed(steps) if step.time > when and step.pid not in known), default=None)


def lost_steps(steps: Sequence[Step], when: int, first: Step, survivors: Collection[int]) -> int:
    """Return the number of steps that were computed in vain because of an event.

    Those that were finished and had to be done again, and those that survivors computed and gave up. A step that one
    survivor finished in the old world, and another one after the event, was done once.

    Args:
        steps: of all workers, before and after the event.
        when: the event was, in nanoseconds.
        first: the first step after it.
        survivors: the processes that lived through it.
    """
    before = [step for step in committed(steps) if step.time < first.time]
    its_own = [step for step in before if step.pid == first.pid]
    finished = max((step.number for step in its_own or before), default=first.number - 1)
    given_up = {
        step.number
        for step in steps
        if step.size == GIVEN_UP and when < step.time <= first.time and step.pid in survivors
    }
    return max(0, finished + 1 - first.number) + len(given_up)


def gaps(steps: Iterable[Step], pids: Collection[int], begin: int, end: int) -> list[float]:
    """Return the seconds from step to step of each of these workers, within an interval of time.

    The time from the last step to the end of the interval counts too: a worker that stands still must not look fast.
    """
    found = []
    for pid in pids:
        times = sorted(step.time for step in committed(steps) if step.pid == pid and begin <= step.time <= end)
        times = times or [begin]
        found += [(after - before) / 1e9 for before, after in pairwise([*times, end])]
    return found


def median_step(steps: Iterable[Step], pids: Collection[int], begin: int, end: int) -> float:
    """Return the median of a step's seconds in an interval of time."""
    return statistics.median(gaps(steps, pids, begin, end))


def whole_world(steps: Sequence[Step], size: int, since: int) -> frozenset[int] | None:
    """Return the processes whose latest steps are all of one world of this size, or None if there is no such world.

    Args:
        steps: of all workers.
        size: wanted.
        since: older steps do not count, in nanoseconds.
    """
    latest = {step.pid: step for step in sorted(committed(steps)) if step.time > since}
    if len(latest) == size and all(step.size == size for step in latest.values()):
        return frozenset(latest)
    return None


def longest_pause(steps: Sequence[Step], pids: Collection[int], begin: int, end: int) -> float:
    """Return the longest time in which these workers, or those that came instead of all of them, finished no step.

    As long as one of these workers makes steps at the end, it is the longest step of one of them.
    """
    inside = [step for step in committed(steps) if begin <= step.time <= end]
    last = {step.pid: step.time for step in sorted(inside)}
    lived = [pid for pid in pids if pid in last and end - last[pid] < (end - begin) / 10]
    if lived:
        return max(gaps(steps, lived, begin, end))
    times = [begin, *sorted(step.time for step in inside), end]
    return max(after - before for before, after in pairwise(times)) / 1e9


def step_seconds(steps: Iterable[Step], numbers: range) -> float:
    """Return the median seconds from one of these steps to the next, of the worker of rank 0."""
    times = {step.number: step.time for step in committed(steps) if step.rank == 0 and step.number in numbers}
    ordered = [times[number] for number in sorted(times)]
    return statistics.median(after - before for before, after in pairwise(ordered)) / 1e9
