"""A queue on hosts that are namespaces of this machine, and jobs that run through it."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.sharing.prediction import SLOTS, STEP_SECONDS, Costs, Job
from farandole.control.scheduler.rules import Rules, parse_queues

BATCH = 48
QUEUES = {"digits": "weight=1", "language": "weight=2"}
RULES = Rules(quantum=6.0, round=5.0, queues=parse_queues([f"{name}:{text}" for name, text in QUEUES.items()]))
"""A setting of the queue and of the simulator."""
_SLICE_OF_STARTS = 4.0
"""The least length of a time slice, in lengths of a start: in a shorter one, a job would make no progress."""
_ROOT = Path(__file__).resolve().parents[2]
_STATE = "/root/queue"
_MOST_SECONDS = 1500.0
_POLL_SECONDS = 0.5


def rules_for(costs: Costs) -> Rules:
    """Return the rules of the queue and the simulator for these costs."""
    start = max(costs.start, costs.elastic_start)
    return replace(RULES, quantum=round(max(RULES.quantum, _SLICE_OF_STARTS * start), 1))


class RealQueue:
    """A queue on the desk of a bed of hosts.

    Args:
        bed: the hosts, made by `tests.hosts.bed`.
        kept: a directory that all hosts share.
    """

    def __init__(self, bed: Any, kept: Path) -> None:
        self._bed = bed
        self._kept = kept

    def ask(self, *words: str) -> str:
        """Return the output of a command."""
        variables = f"FARANDOLE_QUEUE={_STATE} FARANDOLE_FAILURE_DEADLINE=30 OMP_NUM_THREADS=1 PYTHONPATH={_ROOT}"
        line = f"{variables} {shlex.join([sys.executable, '-m', 'farandole', *words])}"
        done = self._bed.desk.run(line, timeout=120)
        if done.returncode:
            raise SystemExit(f"farandole {' '.join(words)}: {done.stderr}")
        return str(done.stdout)

    def start(self) -> None:
        """Start the queue's daemon."""
        hosts = ",".join(f"{host.name}:{SLOTS}" for host in self._bed.hosts)
        options = "--host-timeout 30 --start-timeout 120"
        self.ask("queue", "start", "--hosts", hosts, "--run-options", options, "--policy", "fcfs")
        queues = (f"queue.{name}={text}" for name, text in QUEUES.items())
        self.ask("queue", "config", f"round={RULES.round:g}", f"quantum={RULES.quantum:g}", *queues)

    def submit(self, job: Job) -> None:
        """Submit a job."""
        words = ["--steps", str(job.steps), "--batch", str(BATCH), "--step", str(STEP_SECONDS)]
        words += ["--kept", str(self._kept / job.name)]
        options = ["--detach", "--name", job.name, "-np", job.workers, "--duration", f"{job.duration:.1f}"]
        options += ["--priority", str(job.priority), "--queue", job.queue]
        options += ["--suspension", "signal", "--checkpoint", str(self._kept)]
        script = ["timed_job"] if job.kind == "timed" else ["training_job", job.kind]
        self.ask("submit", *options, "--", sys.executable, "-m", f"benchmarks.sharing.{script[0]}", *script[1:], *words)

    def run(
        self, policy: str, these: Sequence[Job], restart_cost: float = 0.0, quantum: float = RULES.quantum
    ) -> dict[str, dict[str, Any]]:
        """Submit jobs at their times, wait for their end, and return the state of each.

        Args:
            policy: the policy of the queue.
            these: the jobs, in the order of their submission.
            restart_cost: the seconds that a change costs, as the policy is told.
            quantum: the seconds of a time slice.

        Raises:
            SystemExit: a job has failed, or the jobs take too long.
        """
        self.ask("queue", "config", f"policy={policy}", f"restart_cost={restart_cost:.2f}", f"quantum={quantum:g}")
        begin, coming = time.monotonic(), list(these)
        while time.monotonic() - begin < _MOST_SECONDS:
            while coming and time.monotonic() - begin >= coming[0].after:
                self.submit(coming.pop(0))
            told = {job["name"]: job for job in json.loads(self.ask("jobs", "--json"))}
            mine = {job.name: told[job.name] for job in these if job.name in told}
            if not coming and all(job["finished"] for job in mine.values()):
                self._check_succeeded(mine)
                return mine
            time.sleep(_POLL_SECONDS)
        raise SystemExit(f"the jobs have not ended after {_MOST_SECONDS:.0f} s")

    def _check_succeeded(self, told: dict[str, dict[str, Any]]) -> None:
        failed = [name for name, job in told.items() if job["state"] != "Succeeded"]
        if failed:
            raise SystemExit(f"{', '.join(failed)} failed; {failed[0]}:\n{self.ask('logs', failed[0])}")

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a job, with its events."""
        status: dict[str, Any] = json.loads(self.ask("status", name, "--json"))
        return status

    def at(self, name: str, text: str) -> float | None:
        """Return the time of a job's last event whose text begins with `text`; None: there is none."""
        return max(
            (event["at"] for event in self.status(name)["events"] if event["text"].startswith(text)), default=None
        )

    def until(self, found: Callable[[], Any], what: str) -> Any:
        """Wait until `found` returns something, and return it."""
        until = time.monotonic() + 60.0
        while not (value := found()):
            if time.monotonic() > until:
                raise SystemExit(f"waited a minute in vain until {what}")
            time.sleep(_POLL_SECONDS / 2)
        return value

    def until_state(self, job: Job, state: str) -> None:
        """Wait until a job is in a state."""
        self.until(lambda: self.status(job.name)["state"] == state, f"{job.name} is {state}")
