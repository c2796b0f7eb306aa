"""The part of a job on Spark Connect that runs in its tasks, which Spark starts together (a barrier stage).

The launcher runs in the task of partition 0, because executors may not reach the client. The other tasks learn its
address through Spark (`allGather`) and dial it. The outcome of the job is returned as the rows of partition 0.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.errors import JobFailed
from farandole.spark.driver import Options, run_job
from farandole.spark.task import Slot
from farandole.spark.use_spark import why_dialer_ended

SCHEMA = "task long, at long, data binary"
_LOST = "Spark has lost a task of the job, and with it a worker; Spark's log has the reason"
# Bytes of one row: a message of Spark Connect takes 128 MB.
_CHUNK = 1 << 20
_MOST_LINES = 10_000
_END_SECONDS = 30.0


@dataclass
class Answer:
    """The result of the tasks.

    Attributes:
        outcome: the outcome of the job, or the error because of which there is none.
        stdout: the last lines that workers have printed, and those of the launcher.
        stderr: the same of their error output.
    """

    outcome: JobOutcome | Exception
    stdout: str = ""
    stderr: str = ""


@dataclass
class Tail:
    """A stream that keeps the last lines written to it."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_LINES))

    def write(self, text: str) -> None:
        """Add text, which may end within a line."""
        for line in text.splitlines(keepends=True):
            if self.lines and not self.lines[-1].endswith("\n"):
                self.lines[-1] += line
            else:
                self.lines.append(line)


@dataclass(frozen=True)
class Member:
    """The function of all tasks of a job, for `mapInArrow`.

    Each task yields rows with its number, their order, and data: in pieces, the pickled `Answer` of task 0, or the exit
    code of the dialer in another one.

    Attributes:
        job: the unique name of the job.
        call: the pickled function and arguments.
        size: the number of tasks.
        options: the user's options.
    """

    job: str
    call: bytes
    size: int
    options: Options

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Serve in the task of a partition."""
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        for _ in batches:
            pass  # Spark expects that its rows are read.
        number = context.partitionId()
        with attempt(context, self.job) as is_first:
            if not is_first:
                result: Answer | int = Answer(JobFailed(_LOST, None, 1)) if number == 0 else 0
            else:
                result = self._lead(context) if number == 0 else self._follow(context)
        data = pickle.dumps(result)
        for at in range(0, len(data), _CHUNK):
            yield pa.RecordBatch.from_pydict({"task": [number], "at": [at], "data": [data[at : at + _CHUNK]]})

    def _lead(self, context: Any) -> Answer:
        out, err = Tail(), Tail()
        tasks = _Tasks(context)
        try:
            host = str(context.getTaskInfos()[0].address).rpartition(":")[0]
            options = replace(self.options, stdout=out, stderr=err)
            outcome: JobOutcome | Exception = run_job(host, tasks, self.call, self.size, None, options)
        except Exception as error:
            outcome = error
            tasks.announce("")
        return Answer(outcome, "".join(out.lines), "".join(err.lines))

    def _follow(self, context: Any) -> int:
        announced = context.allGather("")[0]
        if not announced:
            return 0
        launcher, secret = json.loads(announced)
        slot = Slot(launcher, bytes.fromhex(secret), self.options.start_timeout, self.options.env)
        return slot.serve(f"task-{context.partitionId()}")


@contextlib.contextmanager
def attempt(context: Any, job: str) -> Iterator[bool]:
    """Return whether this is Spark's first attempt to run the tasks of a job: a training must not restart unnoticed.

    If a task is lost, Spark kills the others and restarts all of them, without notifying Python. So each task leaves a
    file on its machine as long as it runs; tasks of a second attempt find one of a task that was killed. A file stays
    if its task fails, because Spark restarts the tasks then as well; `Removal` is for the files of the last attempt.

    Args:
        context: the BarrierTaskContext.
        job: the unique name of the job.
    """
    # The tasks of one attempt look before the first of them leaves a file.
    if any(context.allGather("again" if any(_marks(job)) else "")):
        _remove_marks(job)
        yield False
        return
    mark = _folder_of_marks() / f"{job}.{context.partitionId()}"
    mark.touch()
    yield True
    mark.unlink(missing_ok=True)


@dataclass(frozen=True)
class Removal:
    """The function for `mapInArrow` that removes the files of a job whose tasks Spark has killed.

    Attributes:
        job: the unique name of the job.
    """

    job: str

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Remove the files of this machine; yield no rows."""
        for _ in batches:
            pass
        _remove_marks(self.job)
        yield from ()


def _folder_of_marks() -> Path:
    return Path(tempfile.gettempdir())


def _marks(job: str) -> Iterator[Path]:
    return _folder_of_marks().glob(f"{job}.*")


def _remove_marks(job: str) -> None:
    for path in list(_marks(job)):
        path.unlink(missing_ok=True)


class _Tasks:
    """The tasks of the job, for the launcher in one of them.

    Args:
        context: the BarrierTaskContext of this task.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._announced = False
        self._code = 0
        self._thread: threading.Thread | None = None

    def begin(self, slot: Slot) -> None:
        """Send the launcher's address to the other tasks, and serve it in this one."""
        self.announce(json.dumps([slot.launcher, slot.secret.hex()]))

        def work() -> None:
            self._code = slot.serve("task-0")

        self._thread = threading.Thread(target=work, name="farandole-task-0", daemon=True)
        self._thread.start()

    def announce(self, text: str) -> None:
        """Send the launcher's address to the other tasks, which wait for it; "" if there is none. No-op after the first
        call.
        """
        if not self._announced:
            self._announced = True
            self._context.allGather(text)

    def failure(self) -> str:
        """Return why this task cannot run a worker; "": it can."""
        return why_dialer_ended(0, self._code)

    def end(self, patience: float) -> None:
        """Wait until this task stops serving, soon after the end of the launcher."""
        if self._thread is not None:
            self._thread.join(patience + _END_SECONDS)
