"""The lines for people about joining and leaving workers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from farandole.control.launcher.discovery.host_set import HostSet
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.supervise import messages
from farandole.control.launcher.supervise.messages import Messages, end_message, world_message
from farandole.control.launcher.supervise.workers import Worker, Workers
from farandole.control.roster.events import Announce, Departure, Hold

if TYPE_CHECKING:
    from farandole.control.launcher.host_setup.host_setup import JobHost


Change = tuple[Announce, float]


def changed(
    generation: int,
    workers: tuple[int, ...],
    previous: tuple[int, ...],
    lost: tuple[Departure, ...],
    seconds: float,
    finished: tuple[Departure, ...] = (),
) -> Change:
    return Announce(generation, (), (), workers, previous, lost, finished), seconds


def told(change: Change, ends: dict[int, str] | None = None) -> str:
    return world_message(*change, lambda worker: f"h{worker % 2}", lambda loss: (ends or {}).get(loss.worker, ""))


def test_the_first_world() -> None:
    assert told(changed(1, (0, 1), (-1, -1), (), 1.234)) == "farandole: 2 workers begin as generation 1 (1.2 s)"


def test_lost_workers_are_named_with_reason() -> None:
    lost = (Departure(2, 5, "closed its connections"),)
    change = changed(4, (0, 1, 3), (0, 1, 3), lost, 0.0234)
    assert told(change, {5: "was killed by SIGKILL"}) == (
        "farandole: rank 2 (worker 5 on h1) was killed by SIGKILL; 3 workers go on as generation 4 (23 ms)"
    )
    assert "rank 2 (worker 5 on h1) closed its connections; 3 workers go on" in told(change)


def test_joining_workers_are_named() -> None:
    change = changed(3, (0, 6, 8), (0, -1, -1), (), 0.05)
    assert (
        told(change) == "farandole: workers 6 and 8 on h0 join as ranks 1, 2; 3 workers go on as generation 3 (50 ms)"
    )


def test_many_losses_are_one_line() -> None:
    lost = tuple(Departure(rank, rank, "was lost with its host") for rank in range(1, 8))
    line = told(changed(2, (0,), (0,), lost, 12.0))
    assert "rank 3 (worker 3 on h1) was lost with its host; 4 more were lost; 1 worker goes on" in line
    assert line.endswith("(12 s)") and "\n" not in line


def test_host_removed_by_hand_returns_only_after_it_disappeared() -> None:
    a, b = Host("a", 1), Host("b", 2)
    hosts = HostSet()
    hosts.find([a, b])
    hosts.remove("b")
    hosts.find([a, b])
    assert list(hosts.hosts) == ["a"]
    hosts.find([a])
    hosts.find([a, b])
    assert list(hosts.hosts) == ["a", "b"]


def test_host_added_by_hand_stays() -> None:
    hosts = HostSet()
    hosts.find([Host("a", 1)])
    hosts.add(Host("a", 4))
    hosts.add(Host("b", 1))
    hosts.find([])
    assert [(host.label, host.slots) for host in hosts.hosts.values()] == [("a", 4), ("b", 1)]
    hosts.remove("b")
    assert list(hosts.hosts) == ["a"]


def ended(worker: int, code: int) -> Worker:
    found = Worker(worker, cast("JobHost", SimpleNamespace(host=Host("h1"))))
    found.record.exit_code, found.record.exit_time, found.started_at = code, 20.0, 8.0
    found.record.exception = "ValueError: boom"
    return found


def test_failure_before_next_world_is_reported() -> None:
    waits = "waits for workers: 1 of at least 2 are here. Please check that you have enough."
    line = "farandole: rank 1 (worker 5 on h1) exited with code 1 (ValueError: boom); "
    assert end_message(ended(5, 1), (4, 5), waits, 21.0) == (
        line + "the job waits for workers: 1 of at least 2 are here (1.0 s so far)"
    )
    assert end_message(ended(5, 1), (4, 5), "", 21.0) == line + "the others are about to go on (1.0 s so far)"


def test_failure_of_worker_outside_the_world_is_reported() -> None:
    line = "farandole: worker 5 on h1 exited with code 1 (ValueError: boom) before it was in a world, 12 s after its "
    line += "start; "
    assert end_message(ended(5, 1), (2, 4), "", 21.0) == line + "2 workers go on"
    assert end_message(ended(5, 1), (), "", 21.0) == line + "the job goes on"
    assert (
        end_message(ended(5, 1), (), "waits for worker 6 to join", 21.0) == line + "the job waits for worker 6 to join"
    )


def test_lines_at_the_end_of_a_job_announce_no_next_world() -> None:
    member = "farandole: rank 1 (worker 5 on h1) exited with code 1 (ValueError: boom); the job is about to end"
    assert end_message(ended(5, 1), (4, 5), "", 21.0, over=True) == member
    for world in ((2, 4), ()):
        assert end_message(ended(5, 1), world, "", 21.0, over=True).endswith("after its start; the job is about to end")
    change = changed(3, (0, 1), (0, 1), (), 0.05)
    line = world_message(*change, lambda worker: "h1", lambda loss: "", over=True)
    assert line == "farandole: 2 workers went on as generation 3 (50 ms)"


def test_finished_worker_is_reported_with_consequences() -> None:
    finished = tuple(Departure(rank, 4 + rank, "has finished") for rank in range(1, 6))
    assert told(changed(2, (4,), (0,), (), 0.05, finished[:1])) == (
        "farandole: rank 1 (worker 5 on h1) has finished; no worker is started any more; "
        "1 worker goes on as generation 2 (50 ms)"
    )
    assert "; 2 more have finished; no worker" in told(changed(2, (4,), (0,), (), 0.05, finished))
    left = Departure(1, 5, "has left")
    assert "(worker 5 on h1) has left; no worker is started any more unless it fails; 1 worker" in told(
        changed(2, (4,), (0,), (), 0.05, (left,))
    )
    assert "started any more unless one of them fails;" in told(changed(2, (4,), (0,), (), 0.05, (left, *finished[1:])))


def test_reasons_of_other_workers_are_shortened() -> None:
    without = "its process ended without saying goodbye"
    change = changed(2, (0,), (0,), (Departure(1, 5, without),), 0.05)
    assert f"rank 1 (worker 5 on h1): {without}; 1 worker goes on" in told(change)
    gone = "has shut down, so collectives can no longer complete in this world. If its script was not meant to be"
    change = changed(2, (0,), (0,), (Departure(1, 5, gone),), 0.05)
    assert "rank 1 (worker 5 on h1) has shut down; 1 worker goes on" in told(change)


def test_worker_that_exits_with_0_without_leaving_is_reported() -> None:
    async def hows(*losses: Departure) -> list[str]:
        workers = Workers(cast("Any", None), cast("Any", None), None)
        workers.by_number[5] = ended(5, 0)
        return [workers.how_it_ended(loss) for loss in losses]

    without = Departure(1, 5, "its process ended without saying goodbye")
    found = asyncio.run(hows(without, Departure(1, 5, "left because it was asked to leave"), Departure(1, 6, "died")))
    assert found == ["exited with code 0 without saying goodbye", "", ""]


def test_stopped_worker_is_reported_as_stopped() -> None:
    silent = Departure(1, 5, "it fell silent (its process is stopped, or the network between is cut)")
    left = Departure(1, 5, "left because it was asked to leave")

    async def hows(is_suspended: bool) -> list[str]:
        workers = Workers(cast("Any", None), cast("Any", None), None)
        worker = workers.by_number[5] = Worker(5, cast("Any", None))
        worker.is_suspended = is_suspended
        return [workers.how_it_ended(loss) for loss in (silent, left)]

    assert asyncio.run(hows(True)) == ["was stopped (SIGSTOP)", ""]
    assert asyncio.run(hows(False)) == ["", ""]


def test_failure_after_leaving_is_reported() -> None:
    worker = ended(5, 3)
    worker.was_member = True
    line = (
        "farandole: worker 5 on h1 exited with code 3 (ValueError: boom) after it had left the world; 2 workers go on"
    )
    assert end_message(worker, (2, 4), "", 21.0) == line


def test_long_wait_is_reported_with_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "WAIT_SECONDS", 0.0)
    said: list[str] = []

    async def wait() -> None:
        messages = Messages(cast("Any", SimpleNamespace(say=said.append)), cast("Any", None), cast("Any", None))
        messages.waits(Hold("members", "waits for rank 1", 60.0))
        await asyncio.sleep(0.01)
        assert messages.waits_for == "waits for rank 1"
        messages.waits(Hold(""))
        await asyncio.sleep(0.01)
        assert messages.waits_for == ""

    asyncio.run(wait())
    (line,) = said
    assert line.startswith("farandole: the job waits for rank 1 (") and line.endswith(" so far, 60 s at most)"), line
