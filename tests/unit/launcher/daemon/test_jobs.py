"""The directory of jobs, in which they are found by name."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from pathlib import Path

import msgspec
import pytest

from farandole.base.wire import clock
from farandole.base.wire.errors import AuthenticationFailed
from farandole.control.launcher.daemon import daemon_connection
from farandole.control.launcher.daemon import jobs as jobs_module
from farandole.control.launcher.daemon.client_protocol import JobEnded
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs, jobs_of_this_user
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE
from farandole.errors import SpecError


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


def test_name_is_taken_while_its_daemon_lives(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    assert jobs.start("a") is None
    assert [each.name for each, _ in jobs.running()] == ["a"]
    os.close(lock)
    assert jobs.running() == []
    assert not directory.path.exists()


def test_oldest_job_is_first_and_generated_names_are_short(jobs: Jobs) -> None:
    locks = [start(jobs, "young", 2.0)[1], start(jobs, "old", 1.0)[1]]
    assert [each.name for each, _ in jobs.running()] == ["old", "young"]
    taken = jobs.start(None)
    assert taken is not None and re.fullmatch(r"[a-z]+-[a-z]+-\d\d", taken[0].name)
    for lock in (*locks, taken[1]):
        os.close(lock)


def test_unreported_end_is_kept_for_a_while(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    directory.write_ended(JobEnded(3, "boom"))
    os.close(lock)
    assert jobs.running() == [] and jobs.find("a", ended_too=True)[0].ended() == JobEnded(3, "boom")
    long_ago = time.time() - jobs_module.KEPT_SECONDS - 1
    os.utime(directory.path / "ended.json", (long_ago, long_ago))
    assert jobs.known() == []


def test_new_job_with_old_name_finds_no_old_files(jobs: Jobs) -> None:
    directory, lock = start(jobs, "a")
    directory.write_ended(JobEnded(3))
    directory.log.write_text("old\n")
    os.close(lock)
    again, lock = start(jobs, "a")
    assert again.ended() is None and not again.log.exists()
    os.close(lock)


def test_directory_that_cannot_be_locked_is_an_error_for_its_job_only(jobs: Jobs) -> None:
    path = jobs.directory("a").path
    (path / "lock").mkdir(parents=True)
    with pytest.raises(SpecError, match=rf"{re.escape(str(path / 'lock'))} cannot be written: Is a directory") as error:
        jobs.start("a")
    assert "free disk space there" in error.value.hint
    _, lock = start(jobs, "b")
    assert [each.name for each, _ in jobs.running()] == ["b"]
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


def test_jobs_are_stored_elsewhere_without_home_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    environment = {"XDG_CACHE_HOME": str(tmp_path / "file"), "XDG_RUNTIME_DIR": str(runtime)}
    jobs_of_this_user(environment)
    assert (runtime / "farandole" / "jobs").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "farandole" / "jobs"
    theirs.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(jobs_module, "_places", lambda environment: iter([theirs]))
    with pytest.raises(SpecError, match="it is not a directory of this user"):
        jobs_of_this_user({})


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "-x", "x" * 64, "add", "drain", "remove", "a b"])
def test_invalid_names_are_refused(jobs: Jobs, name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid name of a job"):
        jobs.directory(name)


def test_both_ends_of_socket_check_the_user(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, lock = start(jobs, "a")
    with directory.listen() as listener, directory.connect() as client:
        accepted, _ = listener.accept()
        with accepted:
            daemon_connection.check_peer(accepted)
            monkeypatch.setattr(daemon_connection.os, "geteuid", lambda: 4711)
            with pytest.raises(AuthenticationFailed, match="not one of user 4711"):
                daemon_connection.check_peer(client)
    os.close(lock)


# --- jobs whose daemon was killed -----------------------------------------------------------------------------------


def abandoned(jobs: Jobs, outlived: float = 600.0, clock_of: str | None = None) -> JobDirectory:
    """Return the directory of a job whose daemon was killed, and has left what another one needs."""
    directory, lock = start(jobs, "a")
    known = directory.record()
    assert known is not None
    directory.write_record(msgspec.structs.replace(known, outlived=outlived, clock=clock_of or clock.identity()))
    for part in (STATE, LAUNCHER):
        directory.failover_files().save(part, b"x")
    os.close(lock)
    return directory


def test_job_that_can_be_taken_over_is_kept(jobs: Jobs) -> None:
    directory = abandoned(jobs)
    assert jobs.start("a") is None
    assert [each.name for each, _ in jobs.running()] == ["a"]
    assert jobs.find("a")[0].can_be_taken_over()
    lock = directory.claim()
    assert lock is not None, "nobody has it"
    os.close(lock)


def test_job_is_removed_when_its_agents_have_given_up(jobs: Jobs) -> None:
    directory = abandoned(jobs, outlived=5.0)
    was_seen(directory, 5.0 + 3 * jobs_module.LIFE_SECONDS)
    assert not directory.can_be_taken_over()
    assert jobs.running() == [] and not directory.path.exists()


def was_seen(directory: JobDirectory, seconds: float) -> None:
    """Pretend that the daemon was last seen alive some time ago."""
    then = time.monotonic_ns() - int(seconds * 1e9)
    os.utime(directory.path / "lock", ns=(then, then))


def test_witness_of_daemons_end_ignores_its_last_sign_of_life(jobs: Jobs) -> None:
    """It may have been stopped for an hour, and its workers have not noticed."""
    directory = abandoned(jobs, outlived=5.0)
    was_seen(directory, 3600.0)
    assert directory.can_be_continued()


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_job_can_be_taken_over_after_jump_of_time(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    directory = abandoned(jobs)
    jumped = time.time() + jump
    monkeypatch.setattr(time, "time", lambda: jumped)
    assert directory.can_be_taken_over()
    directory.show_life()
    assert directory.can_be_taken_over()


def test_expired_job_is_removed_after_jump_back_of_time(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = abandoned(jobs, outlived=5.0)
    was_seen(directory, 5.0 + 3 * jobs_module.LIFE_SECONDS)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert not directory.can_be_taken_over()


def test_untouched_lock_is_not_a_sign_of_life(jobs: Jobs) -> None:
    directory = abandoned(jobs)
    (directory.path / "lock").touch()
    assert not directory.can_be_taken_over()


def test_job_is_removed_after_restart_of_machine(jobs: Jobs) -> None:
    assert not abandoned(jobs, clock_of="another start").can_be_taken_over()
    assert jobs.running() == []


def test_ended_job_is_not_taken_over(jobs: Jobs) -> None:
    directory = abandoned(jobs)
    directory.write_ended(JobEnded(0))
    assert not directory.can_be_taken_over()


def test_incomplete_files_cannot_be_taken_over(jobs: Jobs) -> None:
    directory = abandoned(jobs)
    (directory.path / f"{STATE}.left").unlink()
    assert not directory.can_be_taken_over()


def test_outdated_file_is_removed_if_it_cannot_be_replaced(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = abandoned(jobs)

    def full(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        directory.failover_files().save(STATE, b"newer")
    assert directory.failover_files().left(STATE) is None and not directory.can_be_taken_over()
    directory.failover_files().save(STATE, b"newest")
    assert directory.can_be_taken_over()


def test_failover_files_are_private_and_replaced_atomically(jobs: Jobs) -> None:
    directory = abandoned(jobs)
    failover_files = directory.failover_files()
    assert [path.stat().st_mode & 0o077 for path in directory.path.glob("*.left")] == [0, 0]
    failover_files.save(STATE, b"y" * 100)
    failover_files.save(STATE, b"z")
    assert failover_files.left(STATE) == b"z"
    other, lock = start(jobs, "b")
    assert other.failover_files().left(STATE) is None
    os.close(lock)
