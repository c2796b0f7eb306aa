"""The failover state is read as it was written, or refused."""

from __future__ import annotations

import asyncio
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from slot_jobs import Job, beginning, with_roster

from farandole.control.launcher.slots.failure_rules import FLAPS
from farandole.control.launcher.slots.job_state import End, JobState
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE, FailoverFiles, NotTakenOver
from farandole.control.launcher.supervise.failover_state import FailoverWriter, LauncherFacts, read_failover_state
from farandole.control.launcher.supervise.job_history import SavedHistory
from farandole.control.roster.events import Hold, Joined


def written(directory: Path, state: JobState) -> FailoverFiles:
    """Return the files of a launcher that has decided on this state."""
    files = FailoverFiles(directory)
    facts = LauncherFacts(cast("Any", "identity"), "127.0.0.1:1", cast("Any", "hosts"), (), (), SavedHistory(), ("h1",))

    async def write() -> None:
        writer = FailoverWriter(files, lambda: facts, lambda followed: None)
        writer.decided(state, ["h1"])
        writer.close()

    asyncio.run(write())
    return files


def a_state() -> JobState:
    """Return the state of a job to which much has happened."""
    job = Job(beginning(1, None, blacklist=True), ("h1", FLAPS), ("h2", 2))
    job.begin_world(*job.workers())
    job.end(0)
    assert any(math.isinf(site.barred_until) for site in job.state.sites)
    members = with_roster(job.state, device_numbers={1: ("h1", 0)}, leaving=frozenset({1}), training=2)
    return replace(members, end=End(7.0, 5.0, "timed out", worker=1))


def test_state_survives_round_trip(tmp_path: Path) -> None:
    state = a_state()
    found = read_failover_state(written(tmp_path, state))
    assert found is not None and found.state == state and found.roster == "127.0.0.1:1"


def test_state_of_connections_and_timers_is_not_written(tmp_path: Path) -> None:
    state = a_state()
    waits = with_roster(state, waiting={1: Joined(1, "c")}, hold=Hold("members", "waits", 9.0), notified=(1, 0))
    found = read_failover_state(written(tmp_path, waits))
    assert found is not None and found.state == state


@pytest.mark.parametrize("part", [STATE, LAUNCHER])
@pytest.mark.parametrize("content", [pickle.dumps("of a version without a format"), b"farandole failover 1\nx"])
def test_files_of_another_version_are_refused(tmp_path: Path, part: str, content: bytes) -> None:
    files = written(tmp_path, a_state())
    files.save(part, content)
    with pytest.raises(NotTakenOver, match="cannot be read: it has the format of another version") as refused:
        read_failover_state(files)
    assert "was another version of farandole installed since?" in refused.value.hint


class CountingStore(FailoverFiles):
    """Files that record which parts were written, in their order."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.saved: list[str] = []

    def save(self, part: str, content: bytes) -> bool:
        self.saved.append(part)
        return super().save(part, content)


Decided = tuple[JobState, tuple[str, ...], bool]


def saved_after(directory: Path, *decided: Decided, seconds: float = 0.0) -> tuple[list[str], JobState]:
    """Return which parts were written for decisions after the first one, and the state in the files.

    Args:
        directory: the directory of the files.
        decided: state, hosts and `later` of each decision.
        seconds: seconds to wait after the last one.
    """
    files = CountingStore(directory)
    facts = LauncherFacts(cast("Any", "identity"), "127.0.0.1:1", cast("Any", "hosts"), (), (), SavedHistory(), ("h1",))

    async def write() -> None:
        writer = FailoverWriter(files, lambda: facts, lambda followed: None)
        writer.decided(a_state(), ["h1"])
        files.saved.clear()
        for state, hosts, later in decided:
            writer.decided(state, hosts, later=later)
        await asyncio.sleep(seconds)
        writer.close()

    asyncio.run(write())
    found = read_failover_state(files)
    assert found is not None
    return files.saved, found.state


def states(number: int) -> list[JobState]:
    return [replace(a_state(), next_worker=100 + index) for index in range(number)]


def test_many_facts_that_may_wait_are_written_once_and_before_those_of_the_launcher(tmp_path: Path) -> None:
    several = states(50)
    saved, found = saved_after(tmp_path, *((each, ("h1",), True) for each in several), seconds=0.1)
    assert saved == [STATE, LAUNCHER]
    assert found == several[-1]


def test_state_is_written_before_actions_although_earlier_facts_wait(tmp_path: Path) -> None:
    one, two = states(2)
    assert saved_after(tmp_path, (one, ("h1",), True), (two, ("h1",), False)) == ([STATE], two)


def test_waiting_state_is_written_before_actions_of_a_decision_that_does_not_change_it(tmp_path: Path) -> None:
    (one,) = states(1)
    assert saved_after(tmp_path, (one, ("h1",), True), (one, ("h1",), False)) == ([STATE], one)


def test_waiting_state_is_written_before_facts_of_the_launcher_about_new_hosts(tmp_path: Path) -> None:
    one, two = states(2)
    saved = saved_after(tmp_path, (one, ("h1",), True), (two, ("h1", "h2"), False))
    assert saved == ([STATE, LAUNCHER, STATE], two)
