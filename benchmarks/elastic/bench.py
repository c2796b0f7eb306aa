"""Repeat trials, within limits of number and time. A job that fails is counted and reported, and the run goes on."""

from __future__ import annotations

import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.elastic.jobs import Job, JobFailed, Setting, running
from benchmarks.elastic.peers import Peer

_ENOUGH_FAILURES = 3
"""The most trials in a row that measure nothing: more would only cost time."""
_TRIALS_OF_A_JOB = 4
"""farandole starts no worker for a while on a host that has lost five of them within a minute."""


@dataclass
class Trial:
    """The outcome of one trial.

    Attributes:
        outcome: in a few words, the same words for the same thing.
        values: the measured values, by name; a value that was not measured is missing.
        detail: the library's own message, if it printed one.
    """

    outcome: str
    values: dict[str, float] = field(default_factory=dict)
    detail: str = ""


Take = Callable[[Job, frozenset[int]], Trial]


@dataclass(frozen=True)
class Bench:
    """The user's options, and what all trials share.

    Args:
        folder: the folder of the jobs' files; it is removed after the run.
        repetitions: the number of trials of each event with each library.
        seconds: the time for all trials of one event with one library. A trial that has begun is finished.
    """

    folder: Path
    repetitions: int
    seconds: float
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    def say(self, text: str) -> None:
        """Print a line for the user who waits."""
        tqdm.write(text, file=sys.stderr)

    def make_folder(self) -> Path:
        """Return a new folder for a job."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def repeat(self, what: str, peer: Peer, setting: Setting, take: Take, *, reuse: bool = True) -> list[Trial]:
        """Repeat a trial with a job. A job that does not come back to its full size is replaced.

        Args:
            what: the name of the trial, for the progress bar.
            peer: the library.
            setting: the setting of its jobs.
            take: a function that makes one trial. It gets a job whose workers all make steps together, and their
                processes.
            reuse: whether a job that has survived one trial is used for the next.
        """
        trials: list[Trial] = []
        end = time.monotonic() + self.seconds
        with tqdm(total=self.repetitions, desc=f"{what}: {peer.name}", file=sys.stderr, disable=None) as bar:
            while len(trials) < self.repetitions and time.monotonic() < end and not _hopeless(trials):
                most = min(self.repetitions - len(trials), _TRIALS_OF_A_JOB if reuse else 1)
                job = peer.job(setting, self.make_folder())
                for trial in self._take_with_one_job(job, take, most, end):
                    trials.append(trial)
                    bar.update()
                    if trial.detail:
                        self.say(f"    {peer.name}, {what}: {trial.outcome}{trial.detail}")
        return trials

    def _take_with_one_job(self, job: Job, take: Take, most: int, end: float) -> Iterator[Trial]:
        """Yield trials until the job does not come back to its full size, or there are enough."""
        taken = 0
        try:
            with running(job):
                while taken < most and time.monotonic() < end:
                    world = job.wait_for_world(job.setting.size)
                    # The event may fall on any moment of a step.
                    job.wait(self.chance.uniform(1.0, 1.5))
                    taken += 1
                    trial = take(job, world)
                    yield trial
                    if not trial.values:
                        return
        except JobFailed as error:
            if not taken:
                yield Trial("did not start", detail=f": {error}")
            else:
                self.say(f"    a new job is started: {error}")


def _hopeless(trials: list[Trial]) -> bool:
    last = trials[-_ENOUGH_FAILURES:]
    return len(last) == _ENOUGH_FAILURES and not any(trial.values for trial in last)


@contextlib.contextmanager
def benching(repetitions: int, seconds: float) -> Iterator[Bench]:
    """Make a bench, and remove its files in the end."""
    folder = Path(tempfile.mkdtemp(prefix="farandole-", dir="/tmp"))
    try:
        yield Bench(folder, repetitions, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
