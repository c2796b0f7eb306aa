"""The launcher of an attempt: how it follows orders, and the environment in which it starts a job."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.control.jobs.spec import from_dict
from farandole.control.launcher.supervise.failover_files import PARTS
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.control.queue.attempt import Attempt, AttemptRequest, AttemptResult
from farandole.control.queue.model import Owner
from farandole.control.queue.runner import Runner

ME = Owner(os.geteuid(), os.getegid(), "me")


class FakeJob:
    """A job that runs and remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self, code: int, why: str) -> None:
        self.told.append(f"stop {code}")

    def send_signal(self, number: int) -> None:
        self.told.append(signal.Signals(number).name)

    def pause(self) -> None:
        self.told.append("pause")


def attempt_of(tmp_path: Path, directory: str = "/", **keys: object) -> Attempt:
    spec = from_dict({"name": "a", "command": ["true"], "grace": 1.0, **keys})
    attempt = Attempt(tmp_path, "a", 1)
    attempt.prepare(AttemptRequest(spec, {"localhost": 1}, {}, directory), ME)
    return attempt


@pytest.mark.parametrize(
    ("orders", "keys", "told"),
    [
        (["cancel", "cancel"], {}, ["stop 143"]),
        (["kill"], {}, ["stop 143", "stop 143"]),
        (["cancel", "kill", "kill"], {}, ["stop 143", "stop 143"]),
        (["suspend"], {"signal": "SIGUSR1"}, ["SIGUSR1"]),
        (["suspend", "kill"], {"signal": "SIGUSR1"}, ["SIGUSR1", "stop 143"]),
        (["suspend"], {"signal": "SIGUSR1", "workers": "1:2"}, ["stop 143"]),
    ],
    ids=["once", "at once", "first in good order", "saves itself", "saves itself too slowly", "elastic"],
)
def test_orders_are_passed_to_job(tmp_path: Path, orders: list[str], keys: dict[str, object], told: list[str]) -> None:
    attempt, job, loop = attempt_of(tmp_path, **keys), FakeJob(), asyncio.new_event_loop()
    runner, running = Runner(attempt, attempt.request()), asyncio.Future[JobOutcome](loop=loop)
    runner._job = job
    for order in orders:
        attempt.order(order)
        runner.follow_order(running)
    assert job.told == told and not running.cancelled()
    loop.close()


def test_order_cancels_launch_but_not_take_over(tmp_path: Path) -> None:
    attempt, loop = attempt_of(tmp_path, workers="1:2"), asyncio.new_event_loop()
    runner, running = Runner(attempt, attempt.request()), asyncio.Future[JobOutcome](loop=loop)
    attempt.order("cancel")
    runner._follows = True
    runner.follow_order(running)
    assert not running.cancelled(), "its workers would go on alone"
    runner._follows = False
    runner.follow_order(running)
    assert running.cancelled()
    loop.close()


def test_attempt_can_be_continued_only_on_its_own_boot(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, workers="1:2")
    attempt.begin()
    assert not attempt.can_go_on(), "its launcher has left nothing"
    for part in PARTS:
        attempt.failover_files().save(part, b"x")
    assert attempt.can_go_on()
    (attempt.own / "begun").write_text("an earlier boot")
    assert not attempt.can_go_on()


def test_missing_working_directory_ends_job_with_reason(tmp_path: Path) -> None:
    attempt = attempt_of(tmp_path, str(tmp_path / "gone"))
    command = [sys.executable, "-m", "farandole.control.queue.runner", str(attempt.path)]
    subprocess.run(command, cwd="/", timeout=60, check=True)
    assert attempt.ended() == AttemptResult(126)
    assert attempt.log.read_text().startswith(f"error: the job cannot be started in {tmp_path / 'gone'}: ")
