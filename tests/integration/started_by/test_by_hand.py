"""A pair of shells, and everything that can go wrong between them."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from tests.integration.started_by.conftest import Started, Starter
from waiting import until

from farandole.worker.core.user_files import MeetingFile

SECRET = "0f" * 32


def start(starter: Starter, rank: int, script: str | None = None, **environment: str) -> Started:
    """Start one of two workers as a person would."""
    place = {"FARANDOLE_RANK": str(rank), "FARANDOLE_SIZE": "2", "FARANDOLE_SECRET": SECRET}
    return starter.start(sys.executable, script or starter.script(), **place | environment)


def fails(started: Started) -> str:
    """Wait for a bad end and return what was said."""
    code, out, err = started.finish()
    assert code == 1, out + err
    return err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", socket.gethostname()])
@pytest.mark.parametrize("first", [0, 1])
def test_two_shells_whichever_is_first(starter: Starter, free_port: int, host: str, first: int) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    told = {"FARANDOLE_ROSTER": f"{host}:{free_port}"}
    started = {first: start(starter, first, **told)}
    if first == 1:
        until(lambda: _has_an_engine(started[1].process.pid), "rank 1 has begun to look")
    started[1 - first] = start(starter, 1 - first, **told)
    assert [started[rank].workers()[0]["rank"] for rank in (0, 1)] == [0, 1]


def _has_an_engine(pid: int) -> bool:
    """Return whether the worker has come so far: the next thing it does is to look for rank 0."""
    try:
        return any("memfd:" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # One of them was closed meanwhile.


def test_the_users_key_is_secret_enough(starter: Starter, free_port: int) -> None:
    told = {"FARANDOLE_ROSTER": f"127.0.0.1:{free_port}", "FARANDOLE_SECRET": ""}
    pair = [start(starter, rank, **told) for rank in (0, 1)]
    assert [each.workers()[0]["mean"] for each in pair] == [1.5, 1.5]
    assert (starter.home / ".config" / "farandole" / "key").exists()


def test_a_key_of_the_job_is_enough_where_the_home_is_shared(starter: Starter) -> None:
    pair = [start(starter, rank, FARANDOLE_JOB_KEY="mine", FARANDOLE_SECRET="") for rank in (0, 1)]
    assert [each.workers()[0]["mean"] for each in pair] == [1.5, 1.5]
    assert starter.meeting_files() == []


def test_a_wrong_secret_is_told_at_once(starter: Starter, free_port: int) -> None:
    roster = {"FARANDOLE_ROSTER": f"127.0.0.1:{free_port}"}
    one = start(starter, 1, **roster, FARANDOLE_SECRET="ff")
    # It finds rank 0 at once then, however long a process takes to start.
    until(lambda: _has_an_engine(one.process.pid), "rank 1 has begun to look", 60)
    zero = start(starter, 0, **roster, FARANDOLE_START_TIMEOUT="6")
    assert "FARANDOLE_SECRET" in fails(one)
    assert "1 of 2 workers did not join within" in fails(zero)


def test_rank_0_that_never_comes_ends_the_wait(starter: Starter, free_port: int) -> None:
    told = fails(start(starter, 1, FARANDOLE_ROSTER=f"127.0.0.1:{free_port}", FARANDOLE_START_TIMEOUT="1"))
    assert "did not meet rank 0 within 1 s" in told
    assert f"no connection to 127.0.0.1:{free_port}: Connection refused" in told
    assert "FARANDOLE_START_TIMEOUT" in told


def test_without_a_place_to_meet_nothing_is_tried(starter: Starter) -> None:
    assert "FARANDOLE_ROSTER=<host of rank 0>:<port>" in fails(start(starter, 0))
    assert "FARANDOLE_SIZE is not set" in fails(start(starter, 0, FARANDOLE_SIZE=""))


def test_rank_0_on_another_host_than_said(starter: Starter, free_port: int) -> None:
    told = fails(start(starter, 0, FARANDOLE_ROSTER=f"198.51.100.1:{free_port}", FARANDOLE_LISTEN="127.0.0.1"))
    assert "this machine does not have the address 198.51.100.1" in told
    assert "the host on which rank 0 runs" in told


def test_a_port_that_is_taken(starter: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = fails(start(starter, 0, FARANDOLE_ROSTER=f"127.0.0.1:{taken.getsockname()[1]}"))
    assert "Address already in use" in told


def test_two_workers_of_one_rank(starter: Starter, free_port: int) -> None:
    told = {"FARANDOLE_ROSTER": f"127.0.0.1:{free_port}", "FARANDOLE_SIZE": "3"}
    pair = [start(starter, 1, **told) for _ in range(2)]
    # Both find rank 0 before its patience ends, however long a process takes to start.
    until(lambda: all(_has_an_engine(each.process.pid) for each in pair), "both have begun to look", 60)
    zero = start(starter, 0, **told, FARANDOLE_START_TIMEOUT="6")
    errors = [fails(each) for each in pair]
    assert any("joined twice" in error for error in errors), errors
    assert "rank 2" in fails(zero)


@pytest.mark.parametrize("stale", ["127.0.0.1:1", "somebody else's rubbish", "198.51.100.1:4711", ""])
def test_a_stale_meeting_file_does_no_harm(starter: Starter, monkeypatch: pytest.MonkeyPatch, stale: str) -> None:
    monkeypatch.setenv("HOME", str(starter.home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    MeetingFile("mine").write(stale)
    told = {"FARANDOLE_JOB_KEY": "mine"}
    one = start(starter, 1, **told)
    until(lambda: _has_an_engine(one.process.pid), "rank 1 has begun to look")
    zero = start(starter, 0, **told)
    assert [each.workers()[0]["mean"] for each in (zero, one)] == [1.5, 1.5]


def test_a_stranger_where_the_meeting_file_points_is_left(starter: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(starter.home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        MeetingFile("mine").write(f"127.0.0.1:{stranger.getsockname()[1]}")
        told = {"FARANDOLE_JOB_KEY": "mine"}
        one = start(starter, 1, **told)
        connection, _ = stranger.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            zero = start(starter, 0, **told)
            assert [each.workers()[0]["mean"] for each in (zero, one)] == [1.5, 1.5]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_roster_ends_with_rank_0_although_a_child_of_it_lives(
    starter: Starter, free_port: int, number: signal.Signals
) -> None:
    script = starter.script(
        "import time\nwork()\nif basics.rank() == 0 and os.fork() == 0:\n"
        "    os.close(1), os.close(2), time.sleep(600)\ntime.sleep(600)\n"
    )
    told = {"FARANDOLE_ROSTER": f"127.0.0.1:{free_port}"}
    pair = [start(starter, rank, script, **told) for rank in (0, 1)]
    until(lambda: len(_children(pair[0].process.pid)) == 2, "rank 0 has a roster and a child", 60)
    for each in pair:
        each.process.send_signal(number)
    until(lambda: _servers(starter) == [], "the roster has ended")
    for pid in starter.left():
        os.kill(pid, signal.SIGKILL)


def test_a_forked_child_does_not_keep_the_roster_from_ending_in_good_order(starter: Starter, free_port: int) -> None:
    script = starter.script(
        "import time\nwork()\nbuffers.barrier()\nchild = os.fork() if basics.rank() == 0 else 1\n"
        "if child == 0:\n    os.close(1), os.close(2), time.sleep(600)\n"
        "started = time.monotonic()\nbasics.shutdown()\nassert time.monotonic() - started < 4\n"
    )
    pair = [start(starter, rank, script, FARANDOLE_ROSTER=f"127.0.0.1:{free_port}") for rank in (0, 1)]
    assert [each.workers()[0]["rank"] for each in pair] == [0, 1]
    assert _servers(starter) == []
    for pid in starter.left():
        os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _servers(starter: Starter) -> list[int]:
    """Return the processes of this test that serve a roster."""
    found = []
    for pid in starter.left():
        try:
            if b"farandole.control.roster.serve" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue
    return found
