"""The queue's daemon: `python -m farandole.control.queue.daemon STATE-DIRECTORY`.

One thread, one loop: requests come over a Unix socket, and turns (see `reconcile`) advance the jobs. A change is
written to the database before anything is done about it, so that the daemon may be killed at any moment; jobs have
their own runners and continue meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from farandole.base.display.standard_output import discard_standard_output, log_line
from farandole.base.wire.rendezvous import Measures
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.launcher.background import Background
from farandole.control.launcher.job.from_job import from_plain
from farandole.control.queue.access import Access
from farandole.control.queue.address import DATABASE, socket_of
from farandole.control.queue.executor import Executor
from farandole.control.queue.hosts import PROBE_SECONDS, Prober, is_here
from farandole.control.queue.measures import measured_by, reports_of
from farandole.control.queue.model import AttemptFact, AttemptState, Phase, QueueJob
from farandole.control.queue.reconcile import is_quiet, turn
from farandole.control.queue.server import Server
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.state import QueueState
from farandole.control.queue.store import QueueStore, StoreError
from farandole.control.scheduler.handover import Standing
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.policy import Policy

# Seconds between two turns while something is under way, and while attempts run.
BUSY_SECONDS = 0.2
RUNNING_SECONDS = 0.5
IDLE_SECONDS = 60.0
_CLEAN_SECONDS = 600.0


class QueueDaemon:
    """The daemon of one queue.

    Args:
        directory: the queue's state directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = QueueStore(directory / DATABASE)
        self._state = QueueState(self._store)
        options = self._store.run_options()
        self._executor = Executor(directory / "attempts", self._store.launch, options)
        self._prober = Prober(from_plain(options.launch).ssh)
        self._policy: tuple[object, Policy] | None = None
        self._standing: Standing | None = None
        self._wake = asyncio.Event()
        self._over = asyncio.Event()
        self._look_now = asyncio.Event()
        """Set when the hosts must be probed at once."""
        self._clean_at = 0.0
        self._failed_at: dict[tuple[str, int], float] = {}
        """When attempts were first seen to have failed, on the monotonic clock, in seconds."""
        self._measured: dict[tuple[str, int], Sequence[Measures]] = {}
        """The measurements of attempts that are over."""
        self._server = Server(self._state, self._store, self._executor, Access(self._store), self._wake.set, self.stop)

    def stop(self) -> None:
        """End the daemon; jobs continue."""
        self._over.set()
        self._wake.set()

    async def run(self) -> None:
        """Serve until `stop` is called."""
        await self._server.start(socket_of(self._directory))
        background = Background()
        background.spawn(self._probe())
        try:
            while not self._over.is_set():
                self._wake.clear()
                pause = self._turn()
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
        finally:
            await background.end()
            await self._server.close()
            self._store.close()

    # --- turns -------------------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        """Take a turn, and return the seconds until the next one."""
        state, now = self._state, time.time()
        facts = self._observe()
        before = dict(state.jobs)
        try:
            policy = self._current_policy(state.settings)
            reports = reports_of(state.jobs, measured_by(state.jobs, facts, self._measured_before), state.hosts)
            after = turn(state.jobs, state.hosts, state.settings, facts, policy.decide, now, self._standing, reports)
        except Exception:
            # A policy that fails must not end the daemon: running jobs continue, and users see the reason.
            log_line(traceback.format_exc())
            state.reasons = {name: "waits: the policy has failed; see the queue's log" for name in state.jobs}
            self._standing = None
            return IDLE_SECONDS / 10
        try:
            state.apply(after, facts, now)
        except StoreError as error:
            # Actions are carried out only after they were written. The next turn observes the same state again.
            log_line(f"warning: {error}")
            self._standing = None
            return IDLE_SECONDS / 10
        self._standing = after.standing
        for action in after.actions:
            try:
                self._executor.carry_out(action, state.jobs, time.monotonic())
            except OSError as error:
                log_line(f"warning: {action}: {error}")
        self._clean(now)
        return self._pause(before != state.jobs, facts, now)

    def _observe(self) -> dict[str, AttemptFact]:
        """Return the observed state of all attempts; one whose end cannot be judged yet counts as running."""
        seen = self._executor.observe(self._state.jobs)
        return {
            name: fact if self._is_judged(name, fact) else AttemptFact(AttemptState.RUNS) for name, fact in seen.items()
        }

    def _measured_before(self, job: QueueJob, number: int) -> Sequence[Measures]:
        """Return the measurements of a job in an attempt that is over; its files are read once."""
        key = (job.name, number)
        if key not in self._measured:
            report = self._executor.attempt(job, number).report(job.owner)
            self._measured[key] = report.measures if report is not None else ()
        return self._measured[key]

    def _pause(self, changed: bool, facts: dict[str, AttemptFact], now: float) -> float:
        state = self._state
        review_at = self._standing.decision.review_at if self._standing is not None else None
        review = max(0.05, review_at - now) if review_at is not None else IDLE_SECONDS
        if changed or not is_quiet(state.jobs, facts):
            return min(BUSY_SECONDS, review)
        running = any(job.phase.has_attempt for job in state.jobs.values())
        return min(RUNNING_SECONDS if running else IDLE_SECONDS, review)

    def _current_policy(self, settings: QueueSettings) -> Policy:
        """Return the policy; it is rebuilt when its settings or inputs have changed."""
        users = sorted({(job.spec.queue, job.owner.name) for job in self._state.jobs.values()})
        key = (settings, tuple(users))
        if self._policy is None or self._policy[0] != key:
            self._policy = key, make_policy(settings.policy, settings.rules(users))
        return self._policy[1]

    def _clean(self, now: float) -> None:
        """Remove the files and rows of jobs that ended more than `keep` seconds ago."""
        if time.monotonic() < self._clean_at:
            return
        self._clean_at = time.monotonic() + _CLEAN_SECONDS
        # Files first: the attempts of a later job with the same name have the same numbers, and would find them.
        gone = [job for job in self._state.old(now) if self._remove_attempts(job)]
        try:
            self._state.forget(gone)
        except StoreError as error:
            log_line(f"warning: {error}")
        self._failed_at = {key: at for key, at in self._failed_at.items() if key[0] in self._state.jobs}
        self._measured = {key: each for key, each in self._measured.items() if key[0] in self._state.jobs}

    def _remove_attempts(self, job: QueueJob) -> bool:
        """Remove the files of a job, and return whether none are left."""
        attempts = [self._executor.attempt(job, number) for number in range(1, job.attempt + 1)]
        for attempt in attempts:
            attempt.remove()
        return not any(attempt.path.exists() for attempt in attempts)

    # --- hosts -------------------------------------------------------------------------------------------------------

    def _is_judged(self, name: str, fact: AttemptFact) -> bool:
        """Return whether an attempt's end can be judged: a failed one waits for a probe of its hosts."""
        job = self._state.jobs[name]
        elsewhere = [host for host in job.slots if not is_here(host)]
        if fact.seen is not AttemptState.ENDED or not fact.exit_code or not elsewhere or job.phase is Phase.STOPPING:
            return True
        failed_at = self._failed_at.setdefault((name, job.attempt), time.monotonic())
        if all(self._prober.looked_at.get(host, 0.0) >= failed_at for host in elsewhere):
            return True
        self._look_now.set()
        return False

    async def _probe(self) -> None:
        while True:
            certain = self._look_now.is_set()
            self._look_now.clear()
            names = [host.name for host in self._state.hosts]
            up = await self._prober.probe(names, certain=certain)
            hosts = [replace(host, up=up.get(host.name, host.up)) for host in self._state.hosts]
            for host, before in zip(hosts, self._state.hosts, strict=True):
                if host.up != before.up:
                    news = "answers again" if host.up else "does not answer"
                    log_line(f"host {host.name} {news}")
            try:
                self._state.set_hosts(hosts)
            except StoreError as error:
                # The probe can be repeated. Without further probes, no host would ever be lost or come back.
                log_line(f"warning: {error}")
            self._wake.set()
            # Not wait_for: before Python 3.12, it loses a cancellation that arrives together with the event.
            look = asyncio.ensure_future(self._look_now.wait())
            try:
                await asyncio.wait({look}, timeout=PROBE_SECONDS)
            finally:
                look.cancel()


def claim(directory: Path) -> int | None:
    """Lock a state directory until this process ends; return None if another daemon holds the lock."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock


async def _serve(directory: Path) -> None:
    daemon = QueueDaemon(directory)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, daemon.stop)
    await daemon.run()


def main() -> int:
    """Serve the queue whose state directory is the argument."""
    ensure_utf8()
    directory = Path(sys.argv[1])
    if claim(directory) is None:
        print(f"error: another daemon serves the queue in {directory}", file=sys.stderr)
        return 1
    discard_standard_output()
    try:
        asyncio.run(_serve(directory))
    except StoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
