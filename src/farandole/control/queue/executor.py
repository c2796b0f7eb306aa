"""Carries out the decisions of a turn on the files of attempts and on runners. Every action may be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from farandole.control.queue.attempt import Attempt, AttemptRequest
from farandole.control.queue.model import (
    NOTHING_SEEN,
    Action,
    AttemptFact,
    AttemptState,
    Owner,
    Phase,
    QueueJob,
    RunOptions,
    SetBatch,
    SetHosts,
    StartAttempt,
    StopAttempt,
)

# Seconds after which a runner that has not claimed its attempt is considered lost.
START_SECONDS = 15.0
# Seconds between the end of a runner and the start of the next one; doubled each time while they end soon.
_FIRST_REST = 0.2

Launch = Callable[[str], tuple[Mapping[str, str], str]]
"""Returns the environment and the working directory of a job."""


class Executor:
    """Prepares, starts, stops and observes attempts.

    Args:
        root: the directory of all attempts.
        launch: returns the environment and the working directory of a job, by its name.
        options: the queue's launch options for all jobs.
    """

    def __init__(self, root: Path, launch: Launch, options: RunOptions) -> None:
        self._root = root
        self._launch = launch
        self._options = options
        self._runners: dict[tuple[str, int], _Runner] = {}
        """For each attempt, the runner that was started last."""

    def attempt(self, job: QueueJob, number: int = 0) -> Attempt:
        return Attempt(self._root, job.name, number or job.attempt)

    def observe(self, jobs: Mapping[str, QueueJob]) -> dict[str, AttemptFact]:
        """Return the observed state of all attempts."""
        self._reap(jobs)
        return {name: self._observe(job) for name, job in jobs.items() if job.phase.has_attempt}

    def _observe(self, job: QueueJob) -> AttemptFact:
        try:
            return self.attempt(job).fact(job.owner)
        except OSError:
            # It is observed again in the next turn.
            return AttemptFact(AttemptState.RUNS) if job.phase is Phase.RUNNING else NOTHING_SEEN

    def carry_out(self, action: Action, jobs: Mapping[str, QueueJob], now: float) -> None:
        """Carry out an action, unless that has been done already.

        Args:
            action: the action.
            jobs: all jobs, by name.
            now: seconds on the monotonic clock.

        Raises:
            OSError: the disk refuses a file, or no process can be started.
        """
        job = jobs[action.job]
        attempt = Attempt(self._root, action.job, action.attempt)
        if isinstance(action, StartAttempt):
            self._start(attempt, job, now)
        elif isinstance(action, SetHosts):
            attempt.set_hosts(action.slots, action.numbers)
        elif isinstance(action, SetBatch):
            attempt.set_batch(action.samples)
        elif isinstance(action, StopAttempt):
            attempt.order(action.how)
            attempt.close_if_not_begun()

    def _start(self, attempt: Attempt, job: QueueJob, now: float) -> None:
        attempt.prepare(self._request(job), job.owner)
        key = (job.name, job.attempt)
        before = self._runners.get(key)
        if before is not None and now < before.again_at():
            return
        tries = before.tries + 1 if before is not None and now - before.at <= 2 * START_SECONDS else 1
        self._runners[key] = _Runner(_spawn(attempt.path, job.owner), now, tries)

    def _request(self, job: QueueJob) -> AttemptRequest:
        environment, directory = self._launch(job.name)
        return AttemptRequest(
            job.spec,
            job.slots,
            environment,
            job.spec.working_directory or directory,
            self._options,
            job.slot_numbers,
        )

    def _reap(self, jobs: Mapping[str, QueueJob]) -> None:
        """Reap runners that have ended, and forget the runners of attempts that are over."""
        current = {(name, job.attempt) for name, job in jobs.items() if job.phase.has_attempt}
        for key, runner in list(self._runners.items()):
            if runner.process.poll() is not None and key not in current:
                del self._runners[key]


class _Runner(NamedTuple):
    """A runner that was started."""

    process: subprocess.Popen[bytes]
    at: float
    """When it was started, on the monotonic clock, in seconds."""
    tries: int
    """The number of runners started in quick succession, including this one."""

    def again_at(self) -> float:
        """Return the time from which another runner may be started in its place, on the monotonic clock."""
        if self.process.poll() is None:
            return self.at + START_SECONDS
        return self.at + min(_FIRST_REST * 2.0 ** min(self.tries - 1, 10), START_SECONDS)


def _spawn(directory: Path, owner: Owner) -> subprocess.Popen[bytes]:
    """Start a runner as the job's user, in its own session.

    Raises:
        OSError: the process cannot be started.
    """
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0 and owner.uid != 0:
        groups = os.getgrouplist(owner.name, owner.gid) if owner.name else [owner.gid]
        as_user = {"user": owner.uid, "group": owner.gid, "extra_groups": groups}
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "farandole.control.queue.runner", os.fspath(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",  # python -m imports modules from here first: never from a directory of the user.
        env=kept,
        **as_user,
    )
