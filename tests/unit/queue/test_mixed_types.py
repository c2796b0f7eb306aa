"""Jobs that measure their speed are offered types of hosts on which they have not run yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_world import FakeDaemon, World, hosts

from farandole.control.queue.settings import QueueSettings

pytest.importorskip("scipy")
ADAPTIVE = QueueSettings(policy="adaptive", round=10.0)


class Bed:
    """A queue of elastic jobs that run for long, on hosts of two types.

    Args:
        directory: of its database.
        on: the hosts.
        seconds: of a pass on each host.
    """

    def __init__(self, directory: Path, on: str, **seconds: float) -> None:
        self.world = World(pass_seconds=seconds)
        self.daemon = FakeDaemon(directory, self.world, hosts(on), ADAPTIVE)

    def submit(self, *names: str, workers: str = "1:8", **spec: object) -> None:
        for name in names:
            self.daemon.submit(name, work=1e6, workers=workers, checkpoint="/c", **spec)

    def go_on(self, seconds: float) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            self.daemon.turns()
            self.world.pass_to(self.world.now + 1.0)
        self.daemon.turns()

    def slots(self, prefix: str) -> dict[str, int]:
        """Return the slots of each job on hosts whose names begin like that."""
        return {
            name: sum(number for host, number in job.slots.items() if host.startswith(prefix))
            for name, job in self.daemon.state.jobs.items()
        }


@pytest.fixture
def beds(tmp_path: Path) -> Iterator[list[Bed]]:
    beds: list[Bed] = []
    yield beds
    for bed in beds:
        bed.daemon.close()


def test_jobs_get_slots_of_a_type_they_have_not_run_on(tmp_path: Path, beds: list[Bed]) -> None:
    bed = Bed(tmp_path, "a1:4/a", a1=0.2, b1=0.1, b2=0.1, b3=0.1, b4=0.1)
    beds.append(bed)
    names = [f"job-{number}" for number in range(8)]
    for name in names:  # All of them run on a first, one after the other.
        bed.submit(name)
        bed.go_on(15.0)
        assert bed.slots("a")[name]
        bed.daemon.change("suspend", name)
        bed.go_on(5.0)
    for name in names:
        bed.daemon.change("resume", name)
    bed.go_on(1.0)
    assert sorted(bed.slots("a").values()) == [0, 0, 0, 0, 1, 1, 1, 1]
    state = bed.daemon.state
    state.set_hosts(hosts("a1:4/a,b1:8/b,b2:8/b,b3:8/b,b4:8/b"))
    bed.daemon.turn()
    predicted = [why for why in state.reasons.values() if "of b" in why]
    assert predicted and all(why.endswith("(predicted: it has run only on a so far)") for why in predicted)
    bed.daemon.turns()
    assert all(bed.slots("a")[name] or bed.slots("b")[name] for name in names)
    assert sum(bed.slots("b").values()) >= 8
    bed.go_on(60.0)
    # They have measured b now: it is twice as fast, and full.
    assert sum(bed.slots("b").values()) == 32 and all(bed.slots("")[name] for name in names)


@pytest.mark.parametrize(("seconds", "stays"), [(0.3, "a"), (0.05, "b")])
def test_job_explores_free_type_and_stays_on_the_faster_one(
    seconds: float, stays: str, tmp_path: Path, beds: list[Bed]
) -> None:
    bed = Bed(tmp_path, "a1:4/a", a1=0.2, b1=seconds)
    beds.append(bed)
    bed.submit("first", "second", workers="1:2")
    bed.go_on(15.0)
    bed.daemon.state.set_hosts(hosts("a1:4/a,b1:4/b"))
    bed.go_on(60.0)
    attempts = bed.world.attempts.items()
    tried = {name for (name, _), attempt in attempts if any(on == ("b1",) for on, _ in attempt.measures)}
    assert bed.slots(stays) == {"first": 2, "second": 2}
    assert tried == ({"first"} if stays == "a" else {"first", "second"})
