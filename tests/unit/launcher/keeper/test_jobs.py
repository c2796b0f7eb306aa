"""Where jobs are found by name."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

import pytest

from farandole.core.wire import AuthenticationFailed
from farandole.launcher.errors import SpecError
from farandole.launcher.keeper import jobs as jobs_module
from farandole.launcher.keeper import link
from farandole.launcher.keeper.jobs import JobDirectory, JobRecord, Jobs, jobs_of_this_user
from farandole.launcher.keeper.messages import Ended


def record(name: str, host: str | None = None, started: float = 1.0) -> JobRecord:
    return JobRecord(name, os.getpid(), host or socket.gethostname(), started, ("python", "train.py"))


def start(jobs: Jobs, name: str, started: float = 1.0) -> tuple[JobDirectory, int]:
    taken = jobs.start(name)
    assert taken is not None
    taken[0].write_record(record(name, started=started))
    return taken


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return jobs_of_this_user({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_name_is_taken_while_its_keeper_lives(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    assert jobs.start("a") is None
    assert [each.name for each, _ in jobs.running()] == ["a"]
    os.close(lock)
    assert jobs.running() == []
    assert not directory.path.exists()


def test_the_oldest_comes_first_and_a_made_up_name_is_short(jobs: Jobs) -> None:
    locks = [start(jobs, "young", 2.0)[1], start(jobs, "old", 1.0)[1]]
    assert [each.name for each, _ in jobs.running()] == ["old", "young"]
    taken = jobs.start(None)
    assert taken is not None and re.fullmatch(r"[a-z]+-[a-z]+-\d\d", taken[0].name)
    for lock in (*locks, taken[1]):
        os.close(lock)


def test_an_end_that_was_not_told_is_kept_for_a_while(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    directory.write_ended(Ended(3, "boom"))
    os.close(lock)
    assert jobs.running() == [] and jobs.find("a", ended_too=True)[0].ended() == Ended(3, "boom")
    long_ago = time.time() - jobs_module.KEPT_SECONDS - 1
    os.utime(directory.path / "ended.json", (long_ago, long_ago))
    assert jobs.known() == []


def test_a_new_job_of_an_old_name_finds_nothing_of_the_old_one(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    directory.write_ended(Ended(3))
    directory.log.write_text("old\n")
    os.close(lock)
    again, lock = start(jobs, "a")
    assert again.ended() is None and not again.log.exists()
    os.close(lock)


def test_jobs_of_other_hosts_are_left_alone(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    directory.write_record(record("a", host="elsewhere"))
    os.close(lock)
    assert [each.name for each, _ in jobs.running()] == ["a"]
    with pytest.raises(SpecError, match="job a runs on host elsewhere"):
        jobs.find("a")
    with pytest.raises(SpecError, match="a is the name of a job on host elsewhere"):
        jobs.start("a")


def test_the_directory_is_private(tmp_path: Path) -> None:
    (tmp_path / "farandole" / "jobs").mkdir(parents=True, mode=0o755)
    jobs_of_this_user({"XDG_CACHE_HOME": str(tmp_path)})
    assert (tmp_path / "farandole" / "jobs").stat().st_mode & 0o777 == 0o700


def test_where_there_is_no_home_another_place_is_taken(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file"), "XDG_RUNTIME_DIR": str(runtime)}
    jobs_of_this_user(environment)
    assert (runtime / "farandole" / "jobs").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_somebody_else_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "farandole" / "jobs"
    theirs.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(jobs_module, "_places", lambda environment: iter([theirs]))
    with pytest.raises(SpecError, match="it is not a directory of this user"):
        jobs_of_this_user({})


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "-x", "x" * 64, "add", "drain", "remove", "a b"])
def test_what_is_no_name(jobs: Jobs, name: str) -> None:
    with pytest.raises(SpecError, match="is no name for a job"):
        jobs.directory(name)


def test_both_ends_of_a_socket_see_whose_the_other_is(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, lock = start(jobs, "a")
    with directory.listen() as listener, directory.connect() as visitor:
        accepted, _ = listener.accept()
        with accepted:
            link.check_peer(accepted)
            monkeypatch.setattr(link.os, "geteuid", lambda: 4711)
            with pytest.raises(AuthenticationFailed, match="not one of user 4711"):
                link.check_peer(visitor)
    os.close(lock)
