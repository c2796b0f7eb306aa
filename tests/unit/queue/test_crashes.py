"""The queue's daemon killed between any two steps: no job is lost, none runs twice, no slot is used twice."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from queue_world import ANN, BOB, Crash, FakeDaemon, World, hosts, seeds

from farandole.control.jobs.errors import JobError
from farandole.control.queue.model import Phase
from farandole.control.queue.settings import QueueSettings

pytestmark = pytest.mark.exact
HOSTS = hosts("h1:2,h2:2,h3:2")
SEEDS = 2000 if os.environ.get("FARANDOLE_EXPLORE") == "all" else 80
POLICIES = ("priority+easy+elastic", "fcfs", "rr+greedy", "preempt+greedy+elastic", "srtf", "fair")


class Cuts:
    """Kills the daemon at chosen steps: counts them from 0."""

    def __init__(self, *at: int) -> None:
        self._at = set(at)
        self.steps = 0

    def __call__(self) -> None:
        self.steps += 1
        if self.steps - 1 in self._at:
            raise Crash


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., FakeDaemon]]:
    daemons: list[FakeDaemon] = []

    def begin(step: Callable[[], None] = lambda: None, policy: str = POLICIES[0], **world: object) -> FakeDaemon:
        directory = tmp_path / str(len(daemons))
        directory.mkdir()
        settings = QueueSettings(policy=policy, quantum=7.0)
        daemons.append(FakeDaemon(directory, World(**world), HOSTS, settings, step))  # type: ignore[arg-type]
        return daemons[-1]

    yield begin
    for daemon in daemons:
        daemon.close()


def a_day(daemon: FakeDaemon) -> dict[str, object]:
    """Hand in jobs of all kinds, and ask for all that can be asked for; return how they ended."""
    daemon.submit("plain", workers=2, work=20)
    daemon.submit("grows", workers="1:4", work=40)
    daemon.turns()
    daemon.submit("fails", workers=2, work=6, code=3)
    daemon.submit("tries", workers=1, work=4, code=1, retries=1)
    daemon.submit("saves", BOB, workers=2, work=30, checkpoint="/c", priority=2)
    daemon.turns()
    daemon.world.pass_to(daemon.world.now + 2)
    daemon.turns()
    for verb, name, requester in (("suspend", "saves", BOB), ("cancel", "plain", ANN)):
        daemon.ask(lambda verb=verb, name=name, requester=requester: _quietly(daemon, verb, name, requester))  # type: ignore[misc]
        daemon.turns()
    daemon.until_over()
    daemon.ask(lambda: _quietly(daemon, "resume", "saves", BOB))
    daemon.until_over()
    daemon.check()
    return {name: (job.phase, job.exit_code) for name, job in daemon.state.jobs.items()}


def _quietly(daemon: FakeDaemon, verb: str, name: str, requester: object) -> None:
    """Ask; what was done before the answer was lost may be refused the second time."""
    try:
        daemon.state.change(verb, name, 0, requester, daemon.world.now)  # type: ignore[arg-type]
    except JobError as error:
        assert "is over" in error.message or "not suspended" in error.message, error


EXPECTED = {
    "plain": (Phase.CANCELLED, 143),
    "grows": (Phase.SUCCEEDED, 0),
    "fails": (Phase.FAILED, 3),
    "tries": (Phase.FAILED, 1),
    "saves": (Phase.SUCCEEDED, 0),
}


def begun(daemon: FakeDaemon, name: str) -> int:
    return sum(attempt.begun for (job, _), attempt in daemon.world.attempts.items() if job == name)


def test_invariants_hold_without_crashes(start: Callable[..., FakeDaemon]) -> None:
    daemon = start()
    assert a_day(daemon) == EXPECTED
    assert {name: begun(daemon, name) for name in EXPECTED} == {
        "plain": 1,
        "grows": 1,
        "fails": 1,
        "tries": 2,
        "saves": 2,
    }


def test_invariants_hold_when_daemon_is_killed_at_every_step(start: Callable[..., FakeDaemon]) -> None:
    counted = Cuts()
    a_day(start(counted))
    assert counted.steps > 100
    for at in range(counted.steps):
        daemon = start(Cuts(at))
        assert a_day(daemon) == EXPECTED, f"killed at step {at}"
        assert begun(daemon, "grows") == begun(daemon, "plain") == begun(daemon, "fails") == 1, f"killed at step {at}"
        assert begun(daemon, "tries") == begun(daemon, "saves") == 2, f"killed at step {at}"


def test_invariants_hold_when_daemon_is_killed_repeatedly_with_slow_jobs(
    start: Callable[..., FakeDaemon],
) -> None:
    for seed, dice in enumerate(seeds(0, SEEDS)):
        daemon = start(_Sometimes(dice), POLICIES[seed % len(POLICIES)], delay=_delays(dice), end_seconds=dice.random())
        _random_jobs(daemon, dice)
        daemon.until_over()
        daemon.check()
        for name, job in daemon.state.jobs.items():
            code = daemon.world.work[name][1]
            assert job.phase in (Phase.CANCELLED, Phase.SUCCEEDED if code == 0 else Phase.FAILED), (
                f"seed {seed}: {name}"
            )
            if job.phase is not Phase.CANCELLED and job.spec.how_suspended == "never":
                assert begun(daemon, name) == 1, f"seed {seed}: {name}"


class _Sometimes:
    """Kills the daemon in one of some steps."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def __call__(self) -> None:
        if self._dice.random() < 0.03:
            raise Crash


def _delays(dice: random.Random) -> Callable[[], float]:
    return lambda: dice.choice((0.0, 0.0, 0.5, 3.0))


def _random_jobs(daemon: FakeDaemon, dice: random.Random) -> None:
    for index in range(8):
        workers = dice.choice((1, 2, 3, "1:2", "2:6"))
        saves = dice.random() < 0.5
        daemon.submit(
            f"job-{index}",
            dice.choice((ANN, BOB)),
            work=dice.uniform(1, 60),
            code=dice.choice((0, 0, 0, 5)),
            workers=workers,
            priority=dice.randrange(3),
            duration=dice.uniform(1, 60),
            **({"checkpoint": "/c"} if saves else {}),
        )
        if dice.random() < 0.3:
            target = daemon.state.jobs[f"job-{dice.randrange(index + 1)}"]
            requester = ANN if target.owner.name == "ann" else BOB
            daemon.ask(lambda target=target, requester=requester: _quietly(daemon, "cancel", target.name, requester))  # type: ignore[misc]
        daemon.turns()
        if dice.random() < 0.7:
            daemon.world.pass_to(daemon.world.now + dice.uniform(0, 5))
            daemon.turns()


# --- what else may die -------------------------------------------------------------------------------------------


def test_killed_runner_fails_fixed_job_and_elastic_job_continues(
    start: Callable[..., FakeDaemon],
) -> None:
    daemon = start()
    daemon.submit("plain", workers=2, work=20)
    daemon.submit("grows", workers="1:4", work=40)
    daemon.turns()
    daemon.world.kill_runner("plain", 1)
    daemon.world.kill_runner("grows", 1)
    daemon.until_over()
    assert daemon.state.jobs["plain"].phase is Phase.FAILED
    assert daemon.state.jobs["plain"].reason == "its runner was killed"
    assert daemon.state.jobs["grows"].phase is Phase.SUCCEEDED and begun(daemon, "grows") == 1


def test_fixed_job_on_lost_host_is_restarted(start: Callable[..., FakeDaemon]) -> None:
    daemon = start(policy="fcfs+strict+spread")
    daemon.submit("plain", workers=3, work=30)
    daemon.turns()
    assert dict(daemon.state.jobs["plain"].slots) == {"h1": 1, "h2": 1, "h3": 1}
    import msgspec

    down = [msgspec.structs.replace(host, up=host.name != "h2") for host in daemon.state.hosts]
    daemon.state.set_hosts(down)
    daemon.turns()
    job = daemon.state.jobs["plain"]
    assert job.attempt == 2 and "h2" not in job.slots
    assert daemon.world.attempts["plain", 1].order == "kill"
    daemon.until_over()
    assert daemon.state.jobs["plain"].phase is Phase.SUCCEEDED and job.account.restarts == 1
    events = [event.text for event in daemon.state.status("plain", whole=True).events]
    assert any("host h2 was lost; it begins again" in event for event in events), events


def test_elastic_job_continues_without_lost_host(start: Callable[..., FakeDaemon]) -> None:
    import msgspec

    daemon = start(policy="equal")
    daemon.submit("grows", workers="1:6", work=60)
    daemon.turns()
    assert sum(daemon.state.jobs["grows"].slots.values()) == 6
    daemon.state.set_hosts([msgspec.structs.replace(host, up=host.name != "h1") for host in daemon.state.hosts])
    daemon.turns()
    assert dict(daemon.state.jobs["grows"].slots) == {"h2": 2, "h3": 2}
    daemon.state.set_hosts([msgspec.structs.replace(host, up=True) for host in daemon.state.hosts])
    daemon.turns()
    assert sum(daemon.state.jobs["grows"].slots.values()) == 6
    daemon.until_over()
    assert begun(daemon, "grows") == 1


def test_drained_host_keeps_its_work_and_gets_no_more(start: Callable[..., FakeDaemon]) -> None:
    from farandole.control.queue.hosts import drained

    daemon = start()
    daemon.submit("plain", workers=2, work=20)
    daemon.turns()
    (where,) = daemon.state.jobs["plain"].slots
    daemon.state.set_hosts(drained(daemon.state.hosts, [where]))
    daemon.submit("other", workers=2, work=2)
    daemon.turns()
    assert daemon.state.jobs["plain"].phase is Phase.RUNNING
    assert where not in daemon.state.jobs["other"].slots
    daemon.until_over()
    daemon.check()
    assert daemon.state.jobs["plain"].attempt == 1
