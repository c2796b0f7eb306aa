"""The queue's daemon with its real database and real files, without its loop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_world import hosts

from farandole.control.jobs.spec import from_dict
from farandole.control.queue.attempt import Attempt, AttemptRequest, AttemptResult
from farandole.control.queue.daemon import QueueDaemon
from farandole.control.queue.model import Owner, Phase, QueueJob
from farandole.control.queue.store import QueueStore, StoreError

ME = Owner(os.geteuid(), os.getegid(), "me")


@pytest.fixture
def over(tmp_path: Path) -> Attempt:
    """Return the attempt of a job that has been over for long; both are in the queue's directory."""
    spec = from_dict({"name": "a", "command": ["true"]})
    store = QueueStore(tmp_path / "queue.db", durable=False)
    job = QueueJob("a", spec, ME, 0.0, phase=Phase.SUCCEEDED, attempt=1, finished=0.0, exit_code=0)
    store.add_job(job, {}, "/", [], 0.0)
    store.write_hosts(hosts("localhost:1"))
    store.close()
    attempt = Attempt(tmp_path / "attempts", "a", 1)
    attempt.prepare(AttemptRequest(from_dict({"command": ["true"]}), {"localhost": 1}, {}, "/"), ME)
    attempt.write_ended(AttemptResult(0))
    return attempt


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[list[QueueDaemon]]:
    """Return a list whose daemons are closed at the end."""
    made: list[QueueDaemon] = []
    yield made
    for daemon in made:
        daemon._store.close()


def test_daemon_killed_while_removing_job_leaves_no_result_for_its_namesake(
    tmp_path: Path, over: Attempt, daemons: list[QueueDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    daemons.append(QueueDaemon(tmp_path))
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("shutil.rmtree", killed)
        daemons[0]._clean(time.time())
    daemons.append(QueueDaemon(tmp_path))
    assert "a" in daemons[1]._state.jobs, "the next job of that name would be taken to have ended as this one did"
    daemons[1]._clean(time.time())
    assert not over.path.exists() and not daemons[1]._state.jobs


def test_job_is_kept_while_its_files_cannot_be_removed(
    tmp_path: Path, over: Attempt, daemons: list[QueueDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.append(QueueDaemon(tmp_path))
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    daemons[0]._clean(time.time())
    assert over.path.exists() and "a" in daemons[0]._state.jobs


def test_turn_that_cannot_be_written_is_repeated(
    tmp_path: Path, over: Attempt, daemons: list[QueueDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.append(QueueDaemon(tmp_path))

    def full(*_: object) -> None:
        raise StoreError("the queue's database cannot be written: the disk is full")

    monkeypatch.setattr(daemons[0]._state, "apply", full)
    monkeypatch.setattr(daemons[0]._store, "forget", full)
    assert daemons[0]._turn() > 1.0
    assert "a" in daemons[0]._state.jobs


def test_bug_in_a_probe_of_the_hosts_is_told_at_once(
    tmp_path: Path, over: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = QueueDaemon(tmp_path)

    async def probe(*_: object, **__: object) -> None:
        raise KeyError("h7")

    async def run() -> list[object]:
        told: list[object] = []

        def handle(_: object, context: dict[str, object]) -> None:
            told.append(context["exception"])
            daemon.stop()

        asyncio.get_running_loop().set_exception_handler(handle)
        await asyncio.wait_for(daemon.run(), 60)
        return told

    monkeypatch.setattr(daemon._prober, "probe", probe)
    (error,) = asyncio.run(run())
    assert isinstance(error, KeyError)
