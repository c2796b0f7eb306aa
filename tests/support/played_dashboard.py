"""A simulated source of jobs for dashboards: its job has lost a worker, got another one, and has a slow rank."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from farandole.control.dashboard.app import make_server
from farandole.control.jobs.errors import UnknownJob
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.jobs.view import JobView, Moment, OutputLine, WorkerView

TOKEN = "t0ken-of-the-test"
STALL = "train.py:42 in load_batch: batch = next(loader)"


class PlayedSource:
    """One job called `otter`, whose output grows by a line each time it is read.

    Args:
        ranks: the number of the job's ranks.
        timeline: the file of its timeline.
        evil: text that a worker prints, to test escaping.
    """

    def __init__(self, ranks: int = 4, timeline: str = "", evil: str = "<script>alert(1)</script>") -> None:
        self.ranks = ranks
        self.begun = time.time() - 100
        self._timeline = timeline
        self._lines = [
            OutputLine(0, None, True, "farandole: job otter"),
            OutputLine(1, 1, False, evil),
            OutputLine(2, 0, True, "warning: loss is nan"),
        ]

    def jobs(self) -> list[JobStatus]:
        over = JobStatus("lynx", JobState.FAILED, "local", ("python", "old.py"), reason="rank 1 raised", exit_code=1)
        return [over, self._status()]

    def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
        if name != "otter":
            raise UnknownJob(f"there is no job {name}", "there are otter")
        number = len(self._lines)
        self._lines.append(OutputLine(number, number % self.ranks, False, f"step {number}"))
        return self._status(), self._view(lines_from)

    def output(self, name: str) -> list[OutputLine]:
        return []

    def cluster(self) -> Mapping[str, Any]:
        hosts = [
            {"name": "h1", "slots": 4, "used": 4, "type": "a100", "state": "up", "jobs": ["otter"]},
            {"name": "h2", "slots": 4, "used": 1, "type": "", "state": "draining", "jobs": []},
        ]
        return {"hosts": hosts, "settings": {"policy": "fair-share"}, "jobs": {"Running": 1, "Waiting": 2}}

    def _status(self) -> JobStatus:
        return JobStatus(
            "otter",
            JobState.RUNNING,
            "local",
            ("python", "train.py", "--epochs", "90"),
            workers=self.ranks,
            wanted=self.ranks,
            started=self.begun,
            steps_per_second=12.3,
        )

    def _view(self, lines_from: int) -> JobView:
        size, now = self.ranks, self.begun
        slow = size - 1
        workers = [
            WorkerView(
                rank if rank else size,  # Rank 0 is a newcomer: numbers are not ranks.
                rank,
                f"h{rank * 8 // max(size, 8) + 1}" if size > 8 else f"h{rank % 2 + 1}",
                steps=1000 + rank,
                per_second=12.3 if rank != slow else 12.1,
                waiting=0.02 if rank == slow else 0.31,
                stalls=int(rank == slow),
                stalled_at=STALL if rank == slow else "",
            )
            for rank in range(size)
        ]
        gone = WorkerView(0, None, "h1", runs=False, end="was killed by SIGKILL")
        moments = (
            Moment(now, "world", f"{size} workers begin as generation 1", size, 1),
            Moment(now + 30, "loss", "rank 0 (worker 0 on h1): was killed by SIGKILL", size - 1, 2),
            Moment(now + 30, "world", f"{size - 1} workers go on as generation 2", size - 1, 2),
            Moment(now + 60, "join", f"worker {size} on h1 joins as rank 0", size, 3),
            Moment(now + 60, "world", f"{size} workers go on as generation 3", size, 3),
            Moment(now + 80, "stall", f"others wait for worker {slow} (rank {slow}, on h2) at {STALL}", size, 3),
        )
        return JobView(
            name="otter",
            at=time.time(),
            generation=3,
            size=size,
            per_second=12.3,
            slow=(slow,),
            slow_waiting=0.29,
            workers=(*workers, gone),
            moments=moments,
            losses=1,
            joins=1,
            stalls=1,
            timeline=self._timeline,
            lines=tuple(line for line in self._lines if line.number >= lines_from),
            lines_next=len(self._lines),
        )


@contextlib.contextmanager
def served(source: Any, job: str = "otter") -> Iterator[str]:
    """Serve a dashboard on loopback; yield its address, without the token."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        server = make_server(source, job, TOKEN, port, frozenset({"127.0.0.1", "localhost"}))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(30)
