"""Ends single workers of a host, with all their processes, while others keep running.

A worker that is stopped gets SIGTERM, and SIGKILL when its grace period is over; so do the processes that remain when a
worker ends by itself. A process belongs to a worker by any of three marks, because it can lose each of them: it
descends from the worker's process, it is in the worker's session, it has the worker's number in its environment.

Workers in state T (stopped) are reported, because the other workers of their world wait for them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.process_tree import ProcessTree, is_stopped, send, session_of, started_with

WORKER_VARIABLE = "FARANDOLE_WORKER"
# Seconds that the remaining processes of a worker have to clean up.
LEFTOVER_SECONDS = 1.0
_LOOK_SECONDS = 0.02
_STOPPED_LOOK_SECONDS = 0.5


class _Ending:
    """A worker that is being ended, or whose remaining processes are being ended."""

    def __init__(self, pid: int, kill_at: float) -> None:
        self.pid = pid
        self.kill_at = kill_at
        self.terminated: set[int] = set()
        """The processes that were sent SIGTERM."""
        self.killed = False


class WorkerCleanup:
    """Ends single workers of an agent.

    Args:
        loop: the event loop of the agent.
        gone: called with the rank when no process of the worker is left.
    """

    def __init__(self, loop: Loop, gone: Callable[[int], None]) -> None:
        self._loop = loop
        self._gone = gone
        self._under_way: dict[int, _Ending] = {}
        """The workers that are being ended, by rank."""
        self._timer: Timer | None = None

    def stop(self, rank: int, pid: int, grace: float) -> None:
        """End a worker and its processes: SIGTERM, then SIGKILL after `grace` seconds; a second call can shorten it."""
        kill_at = time.monotonic() + grace
        ending = self._under_way.setdefault(rank, _Ending(pid, kill_at))
        ending.kill_at = min(ending.kill_at, kill_at)
        self._check()

    def is_taken(self, pid: int) -> None:
        """Record that the kernel has reused this process id for another worker."""
        for ending in self._under_way.values():
            if ending.pid == pid:
                ending.pid = 0

    def killed(self, rank: int) -> bool:
        """Return whether SIGKILL was sent to this worker from here."""
        ending = self._under_way.get(rank)
        return ending is not None and ending.killed

    def _check(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tree = ProcessTree()
        for rank, ending in list(self._under_way.items()):
            left = _of_worker(rank, ending.pid, tree)
            if left:
                self._push(ending, left)
            else:
                del self._under_way[rank]
                self._gone(rank)
        if self._under_way:
            self._timer = self._loop.call_later(_LOOK_SECONDS, self._check)

    def _push(self, ending: _Ending, left: list[int]) -> None:
        if time.monotonic() >= ending.kill_at:
            ending.killed = True
            send(left, signal.SIGKILL)
            return
        fresh = [pid for pid in left if pid not in ending.terminated]
        ending.terminated.update(fresh)
        send(fresh, signal.SIGTERM)
        send(fresh, signal.SIGCONT)  # A stopped process does not handle SIGTERM.


class StopWatch:
    """Notices when workers are stopped and continued.

    Args:
        loop: the event loop of the agent.
        changed: called with the rank, and whether it is stopped now.
    """

    def __init__(self, loop: Loop, changed: Callable[[int, bool], None]) -> None:
        self._loop = loop
        self._changed = changed
        self._stopped: dict[int, bool] = {}
        """Whether each process is stopped, by process id."""
        self._ranks: dict[int, int] = {}
        self._timer: Timer | None = None

    def add(self, pid: int, rank: int) -> None:
        """Start watching a worker."""
        self._ranks[pid] = rank
        self._stopped[pid] = False
        if self._timer is None:
            self._timer = self._loop.call_later(_STOPPED_LOOK_SECONDS, self._check)

    def remove(self, pid: int) -> None:
        """Stop watching a worker; no-op if it was not watched."""
        self._ranks.pop(pid, None)
        self._stopped.pop(pid, None)

    def stopped(self) -> list[int]:
        """Return the ranks of the workers that were found stopped."""
        return [rank for pid, rank in self._ranks.items() if self._stopped[pid]]

    def _check(self) -> None:
        for pid, rank in list(self._ranks.items()):
            stopped = is_stopped(pid)
            if stopped != self._stopped[pid]:
                self._stopped[pid] = stopped
                self._changed(rank, stopped)
        self._timer = self._loop.call_later(_STOPPED_LOOK_SECONDS, self._check) if self._ranks else None


def _of_worker(rank: int, pid: int, tree: ProcessTree) -> list[int]:
    """Return the processes below the agent that belong to a worker; `pid` is 0 if it is unknown."""
    known = {pid, *tree.below(pid)} if pid else set()
    mark = f"{WORKER_VARIABLE}={rank}"

    def belongs(each: int) -> bool:
        return each in known or (pid != 0 and session_of(each) == pid) or started_with(each, mark)

    return [each for each in tree.below(os.getpid()) if belongs(each)]
