"""Parts of the queue, each alone: files of attempts, commands, slots that an elastic job still holds, and the store."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from queue_world import ANN, FakeDaemon, World, hosts

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import from_dict
from farandole.control.queue import executor
from farandole.control.queue.attempt import Attempt, AttemptRequest, AttemptResult
from farandole.control.queue.daemon import QueueDaemon, claim
from farandole.control.queue.executor import Executor
from farandole.control.queue.hosts import is_here, parse_queue_hosts, removed
from farandole.control.queue.model import (
    NO_OPTIONS,
    AttemptFact,
    AttemptReport,
    AttemptState,
    HostWorkers,
    Owner,
    Phase,
    QueueJob,
    StartAttempt,
    StopReason,
)
from farandole.control.queue.reconcile import holder, turn
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.store import QueueStore, StoreError
from farandole.control.queue.transitions import observed
from farandole.control.queue.views import cluster_of, view_of
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.cluster import Allocation, Cluster, Node
from farandole.control.scheduler.handover import next_slots
from farandole.control.scheduler.job import Decision
from farandole.control.scheduler.policies import make_policy

ME = Owner(os.geteuid(), os.getegid(), "me")


def job(workers: object = "1:4", slots: dict[str, int] | None = None, **changes: object) -> QueueJob:
    spec = from_dict({"name": "a", "command": ["python", "train.py"], "workers": workers})
    slots = {"h1": 2} if slots is None else slots
    plain = QueueJob("a", spec, ME, 0.0, phase=Phase.RUNNING, attempt=1, slots=slots, held=slots, changed=10.0)
    return msgspec.structs.replace(plain, **changes)


def report(at: float, **workers: tuple[int, int]) -> AttemptFact:
    rows = {host: HostWorkers(*pair) for host, pair in workers.items()}
    return AttemptFact(AttemptState.RUNS, report=AttemptReport(at, rows, sum(pair[1] for pair in workers.values())))


# --- what an elastic job still holds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fact", "held"),
    [
        (AttemptFact(AttemptState.RUNS), {"h1": 2, "h2": 2}),
        (report(9.0, h1=(1, 1)), {"h1": 2, "h2": 2}),
        (report(11.0, h1=(2, 2), h2=(2, 2)), {"h1": 2, "h2": 2}),
        (report(11.0, h1=(1, 2), h2=(2, 0)), {"h1": 2, "h2": 2}),
        (report(11.0, h1=(1, 1), h2=(2, 1)), {"h1": 1, "h2": 2}),
        (report(11.0, h1=(1, 1)), {"h1": 1}),
    ],
    ids=["no word", "an old word", "not read yet", "they leave", "one host is free", "all have left"],
)
def test_slot_is_held_until_job_reports_that_its_workers_left(fact: AttemptFact, held: dict[str, int]) -> None:
    shrinks = job(slots={"h1": 1}, held={"h1": 2, "h2": 2})
    assert dict(observed(shrinks, fact, (), 20.0).held) == held


def test_largest_run_counts_reported_workers() -> None:
    silent = AttemptFact(AttemptState.RUNS)
    assert observed(job(), silent, (), 20.0).largest_run == 0, "newcomers may still be on their way"
    assert observed(job(), report(11.0, h1=(2, 1)), (), 20.0).largest_run == 1
    assert observed(job(largest_run=4), report(11.0, h1=(2, 2)), (), 20.0).largest_run == 4
    assert observed(job("2"), silent, (), 20.0).largest_run == 2, "one of fixed size starts as a whole"


def test_elastic_job_leaves_host_once_a_worker_runs_elsewhere() -> None:
    moving = job(slots={"h1": 1, "h2": 1})
    wanted = {"a": {"h2": 2}}

    def then(fact: AttemptFact) -> dict[str, int]:
        return dict(next_slots({"a": holder(moving, fact)}, wanted, {"h1": 2, "h2": 2})[0]["a"])

    assert then(report(11.0, h1=(1, 1), h2=(1, 0))) == {"h1": 1, "h2": 2}
    assert then(report(11.0, h1=(1, 1), h2=(1, 1))) == {"h2": 2}


def test_elastic_job_with_one_worker_is_restarted_to_move() -> None:
    spec = {"name": "a", "command": ["train"], "workers": 1, "elastic": True, "checkpoint": "/shared/a"}
    one = job(slots={"h1": 1}, spec=from_dict(spec))
    decision = Decision({"a": Allocation("slot", ((1, 1),))}, {})
    after = turn(
        {"a": one}, hosts("h1:1,h2:1"), QueueSettings(), {"a": report(11.0, h1=(1, 1))}, lambda *_: decision, 20.0
    )
    assert (after.jobs["a"].phase, after.jobs["a"].reason) == (Phase.STOPPING, "it goes on elsewhere")


def test_job_that_has_room_only_with_a_lost_host_waits_for_it() -> None:
    waiting = job("2", {}, phase=Phase.WAITING)
    h1, h2 = hosts("h1:1,h2:1")
    short = "it needs 2 slots of one type, and no type has more than 1"
    for known, reason in (
        ((h1,), f"can never start: {short}"),
        ((msgspec.structs.replace(h1, up=False), h2), f"waits for h1, which cannot take work now: {short} now"),
        ((msgspec.structs.replace(h1, draining=True), h2), f"waits for h1, which cannot take work now: {short} now"),
    ):
        after = turn({"a": waiting}, known, QueueSettings(), {}, make_policy("easy").decide, 20.0)
        assert after.reasons["a"] == reason


def test_slots_of_a_draining_host_are_away_unless_a_job_keeps_them() -> None:
    stays = job("2", {"h1": 2})
    (h1,) = hosts("h1:4")
    cluster = cluster_of([msgspec.structs.replace(h1, draining=True)], [stays])
    assert cluster == Cluster((Node("h1", h1.type, 2),), (Node("h1", h1.type, 2),))


def test_policies_see_time_of_restart() -> None:
    settings = QueueSettings(restart_cost=30.0)
    cluster = cluster_of(hosts("h1:4"), ())
    view = view_of(job(account=Account(since=100.0)), cluster, settings, {})
    assert (view.restart_cost, view.restarting_until) == (30.0, 130.0)
    assert (
        view_of(
            job(phase=Phase.WAITING, slots={}, account=Account(since=100.0)), cluster, settings, {}
        ).restarting_until
        == 0.0
    )


# --- an attempt's files --------------------------------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    attempt = Attempt(tmp_path, "a", 1)
    spec = from_dict({"name": "a", "command": ["true"]})
    attempt.prepare(AttemptRequest(spec, {"h1": 2}, dict(os.environ), "/"), ME)
    return attempt


def test_attempt_state_follows_from_its_files(attempt: Attempt) -> None:
    assert attempt.fact(ME).seen is AttemptState.NOTHING
    lock = attempt.claim()
    assert lock is not None and attempt.claim() is None
    attempt.begin()
    assert attempt.fact(ME).seen is AttemptState.RUNS
    with pytest.raises(FileExistsError):
        attempt.begin()
    os.close(lock)
    assert attempt.fact(ME).seen is AttemptState.ORPHANED
    attempt.write_ended(AttemptResult(3, True))
    assert attempt.fact(ME) == AttemptFact(AttemptState.ENDED, 3, True)
    assert attempt.hosts.read_text() == "h1 slots=2\n"
    assert not attempt.set_hosts({"h1": 2}, {}) and attempt.set_hosts({"h1": 1}, {})
    assert attempt.set_hosts({"h1": 1, "h2": 2}, {"h2": "0,3/4"})
    assert attempt.hosts.read_text() == "h1 slots=1\nh2 slots=2 slot-numbers=0,3/4\n"


def test_attempt_of_an_earlier_boot_is_lost(attempt: Attempt) -> None:
    attempt.begin()
    (attempt.own / "begun").write_text("an earlier boot")
    assert attempt.fact(ME).seen is AttemptState.MACHINE_LOST
    attempt.write_ended(AttemptResult(0))
    assert attempt.fact(ME).seen is AttemptState.ENDED, "its end was written before"


@pytest.mark.parametrize("workers", ["2", "1:2"])
def test_job_is_restarted_after_reboot(workers: str) -> None:
    lost = AttemptFact(AttemptState.MACHINE_LOST)
    again = observed(job(workers), lost, (), 20.0)
    assert (again.phase, dict(again.slots), dict(again.held)) == (Phase.WAITING, {}, {})
    assert again.reason == "the queue's machine was restarted; it begins again" and again.failures == 0
    cancelled = job(workers, phase=Phase.STOPPING, why_stopped=StopReason.CANCEL)
    assert observed(cancelled, lost, (), 20.0).phase is Phase.CANCELLED
    suspended = job(workers, phase=Phase.STOPPING, why_stopped=StopReason.SUSPEND)
    assert observed(suspended, lost, (), 20.0).phase is Phase.SUSPENDED


def test_attempt_stores_chosen_batch(attempt: Attempt) -> None:
    assert attempt.batch() == 0
    for batch in (96, 96, 0):
        attempt.set_batch(batch)
        assert attempt.batch() == batch


def test_attempt_that_has_not_begun_can_be_closed(attempt: Attempt) -> None:
    attempt.order("cancel")
    attempt.close_if_not_begun()
    assert attempt.fact(ME) == AttemptFact(AttemptState.ENDED)
    done = run(attempt)
    assert done.returncode == 0 and not attempt.has_begun()


def test_unprepared_attempt_with_stop_order_is_over(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, "b", 1)
    assert attempt.fact(ME).seen is AttemptState.NOTHING
    attempt.order("cancel")
    attempt.close_if_not_begun()
    assert attempt.fact(ME).seen is AttemptState.ENDED


def test_order_is_only_replaced_by_kill(attempt: Attempt) -> None:
    for how, then in (("suspend", "suspend"), ("kill", "kill"), ("cancel", "kill")):
        attempt.order(how)
        assert attempt.ordered() == then


def run(attempt: Attempt) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "farandole.control.queue.runner", str(attempt.path)]
    return subprocess.run(command, cwd="/", timeout=60, check=False)


def test_second_runner_starts_nothing(attempt: Attempt) -> None:
    lock = attempt.claim()
    assert lock is not None
    assert run(attempt).returncode == 0 and not attempt.has_begun()
    attempt.begin()
    os.close(lock)  # The first one is killed.
    assert run(attempt).returncode == 0
    assert attempt.fact(ME) == AttemptFact(AttemptState.ENDED), "a plain job is over then"


def test_a_log_is_read_in_pieces(attempt: Attempt) -> None:
    attempt.log.write_bytes(b"0123456789")
    assert [attempt.read_log(at, 4, ME) for at in (0, 4, 8, 10)] == [b"0123", b"4567", b"89", b""]


# --- hosts, the store --------------------------------------------------------------------------------------------


def test_hosts_have_slots_and_types() -> None:
    told = [(host.name, host.slots, host.type) for host in parse_queue_hosts("n[1-2]:4/a100,h3:2")]
    assert told == [("n1", 4, "a100"), ("n2", 4, "a100"), ("h3", 2, "slot")]
    assert is_here("localhost") and is_here("127.0.0.1") and not is_here("h1")


@pytest.mark.parametrize(("hosts", "hint"), [("h1:4,h2:2", "it has h1, h2"), ("", "it has none: ")])
def test_removal_of_unknown_host_is_refused_with_hosts_that_there_are(hosts: str, hint: str) -> None:
    there = parse_queue_hosts(hosts) if hosts else ()
    with pytest.raises(Refused, match="the queue has no host h9") as refused:
        removed(there, ["h9"])
    assert refused.value.hint.startswith(hint)


def test_one_daemon_serves_a_directory(tmp_path: Path) -> None:
    lock = claim(tmp_path)
    assert lock is not None and claim(tmp_path) is None
    os.close(lock)
    again = claim(tmp_path)
    assert again is not None
    os.close(again)


def test_unusable_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "queue.db").write_text("this is no database, however long it may be")
    with pytest.raises(StoreError, match="cannot be used as the queue's database"):
        QueueStore(tmp_path / "queue.db")
    newer = QueueStore(tmp_path / "newer.db")
    newer._db.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(StoreError, match="was written by a newer farandole"):
        QueueStore(tmp_path / "newer.db")


def test_backup_has_complete_content(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:2"), QueueSettings(policy="rr"))
    daemon.submit("a", ANN, workers=2)
    daemon._store.backup(tmp_path / "copy.db")
    daemon.close()
    copy = QueueStore(tmp_path / "copy.db")
    assert list(copy.jobs()) == ["a"] and copy.settings().policy == "rr" and copy.launch("a") == ({"A": "1"}, "/")
    assert [event.text for event in copy.events("a")] == ["was submitted"]
    copy.close()


def test_backup_is_always_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = QueueStore(tmp_path / "queue.db")
    # As it is before anything is changed about it: it has the environments of all jobs.
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    before = os.umask(0)
    try:
        store.backup(tmp_path / "copy.db")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    store.close()


def test_failed_write_is_an_error_and_the_next_succeeds(tmp_path: Path) -> None:
    store = QueueStore(tmp_path / "queue.db")
    store._db.execute("ALTER TABLE settings RENAME TO elsewhere")
    with pytest.raises(StoreError, match="the queue's database cannot be written: no such table"):
        store.write_settings(QueueSettings())
    store._db.execute("ALTER TABLE elsewhere RENAME TO settings")
    store.write_settings(QueueSettings(policy="rr"))
    assert store.settings().policy == "rr"
    store.close()


def test_hosts_are_probed_again_after_failed_write(tmp_path: Path) -> None:
    async def test() -> tuple[int, bool]:
        daemon = QueueDaemon(tmp_path)
        daemon._state.set_hosts(parse_queue_hosts("far:1"))
        looks = 0

        async def probe(names: Sequence[str], *, certain: bool = False) -> dict[str, bool]:
            nonlocal looks
            looks += 1
            if looks == 1:
                daemon._store._db.execute("ALTER TABLE hosts RENAME TO elsewhere")
            elif looks == 2:
                daemon._store._db.execute("ALTER TABLE elsewhere RENAME TO hosts")
            daemon._look_now.set()  # The next look is due at once.
            return dict.fromkeys(names, False)

        daemon._prober.probe = probe  # type: ignore[method-assign, assignment]
        probing = asyncio.create_task(daemon._probe())
        for _ in range(2000):  # Turns of the event loop, of which the probes take few.
            await asyncio.sleep(0)
        assert not probing.done()
        probing.cancel()
        up = daemon._state.hosts[0].up
        daemon._store.close()
        return looks, up

    looks, up = asyncio.run(test())
    assert looks >= 2 and not up


def test_failing_runner_is_restarted_with_backoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[float] = []
    now = 0.0

    class Ends:
        def poll(self) -> int:
            return 1

    def spawn(*_: object) -> Ends:
        started.append(now)
        return Ends()

    monkeypatch.setattr(executor, "_spawn", spawn)
    one = Executor(tmp_path, lambda _: ({}, "/"), NO_OPTIONS)
    starting = job("2", phase=Phase.STARTING)
    for tick in range(600):
        now = 0.2 * tick
        one.observe({"a": starting})
        one.carry_out(StartAttempt("a", 1), {"a": starting}, now)
    rests = [round(later - earlier, 1) for earlier, later in pairwise(started)]
    assert rests[:5] == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert max(rests) == pytest.approx(15.0, abs=0.3)


def test_turn_is_not_quadratic_in_jobs() -> None:
    compared = 0

    class Counted(QueueJob, frozen=True):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    plain = job("1", {}, phase=Phase.WAITING)
    jobs = {name: Counted(**{**msgspec.structs.asdict(plain), "name": name}) for name in map(str, range(100))}
    turn(jobs, parse_queue_hosts("h1:1"), QueueSettings(), {}, lambda *_: Decision({}, {}), 0.0)
    assert compared <= 100


def test_the_daemon_loads_no_numpy() -> None:
    code = "import sys, farandole.control.queue.daemon, farandole.control.queue.runner; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "scipy", "torch"} & set(loaded)
