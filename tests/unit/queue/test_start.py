"""The files that are created before a queue's daemon runs, and their permissions."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.control.cli import queue as queue_verb
from farandole.control.jobs.errors import BadSpec
from farandole.control.jobs.spec import from_dict
from farandole.control.launcher.job.from_job import from_plain
from farandole.control.queue.attempt import Attempt, AttemptRequest
from farandole.control.queue.model import Owner
from farandole.control.queue.start import prepare

ME = Owner(os.geteuid(), os.getegid(), "me")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_socket_is_reachable_for_all_users_with_any_umask(tmp_path: Path, strict_umask: None) -> None:
    state = tmp_path / "queue"
    prepare(state, "localhost:1", None)
    assert (mode(state), mode(state / "attempts"), mode(state / "queue.db")) == (0o711, 0o711, 0o600)


def test_runner_of_another_user_can_read_attempt_with_any_umask(tmp_path: Path, strict_umask: None) -> None:
    attempt = Attempt(tmp_path, "a", 1)
    attempt.prepare(AttemptRequest(from_dict({"command": ["true"]}), {"localhost": 1}, {}, "/"), ME)
    attempt.set_batch(64)
    attempt.order("cancel")
    assert mode(attempt.path) == 0o755
    assert {name: mode(attempt.path / name) for name in ("hosts", "batch", "order")} == dict.fromkeys(
        ("hosts", "batch", "order"), 0o644
    )
    assert (mode(attempt.own), mode(attempt.path / "request")) == (0o700, 0o600)


@pytest.mark.parametrize("foreground", [False, True])
def test_relative_state_directory_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreground: bool
) -> None:
    class Started(Exception):
        """The daemon was started, as far as this test goes."""

    words: list[str] = []

    def start(*command: object, **_: object) -> None:
        words.extend(command[-1])  # type: ignore[call-overload]
        raise Started

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(os, "execv", start)
    monkeypatch.chdir(tmp_path)
    given = argparse.Namespace(
        words=[], state=Path("q"), hosts="localhost:1", policy=None, run_options="", foreground=foreground
    )
    with pytest.raises(Started):
        queue_verb._start(given)
    assert words[3] == str(tmp_path / "q"), "the daemon's own directory, and its runners', is another one"


def test_options_for_all_jobs_are_read_at_queue_start() -> None:
    options = queue_verb.read_run_options("-i /dev/null -p 2222 --host-timeout 3 -x A=b --python h1=/opt/py --verbose")
    launch = from_plain(options.launch)
    assert (launch.ssh.port, launch.ssh.identity, launch.host_timeout) == (2222, "/dev/null", 3.0)
    assert (launch.exports, options.python, options.verbose) == (("A=b",), ("h1=/opt/py",), True)


@pytest.mark.parametrize("words", ["-np 2", "-H h1:2", "--min-np 1", "--launcher srun", "python train.py"])
def test_options_of_single_job_are_refused_for_queue(words: str) -> None:
    with pytest.raises(BadSpec, match="cannot hold for all jobs of a queue"):
        queue_verb.read_run_options(words)
