"""The default place of jobs, and its replacement when it does not answer."""

from __future__ import annotations

import functools
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import fake_jobs
import pytest
from fake_jobs import FakeJobs

from farandole.control.cli.main import main
from farandole.control.dashboard.sources import source_for
from farandole.control.jobs import places
from farandole.control.jobs.places import Place
from farandole.control.jobs.spec import from_dict
from farandole.control.queue import address, client


def leave_socket(state: Path) -> None:
    """Leave the socket of a queue whose daemon was killed."""
    state.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(state / "socket"))


@pytest.fixture
def serve() -> Iterator[list[socket.socket]]:
    """Return a list of sockets that are closed at the end."""
    sockets: list[socket.socket] = []
    yield sockets
    for sock in sockets:
        sock.close()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Return the environment of a user whose queue is down, on a machine whose queue for all users is down too.

    The place `local` is a fake with one job, `here`.
    """
    monkeypatch.setattr(address, "SHARED_STATE", tmp_path / "all" / "queue")
    monkeypatch.setattr(client, "QueueClient", functools.partial(client.QueueClient, retry=0.0))
    monkeypatch.setitem(places.PLACES, "local", Place("a fake", "fake_jobs:connect"))
    monkeypatch.setattr(fake_jobs, "THE_ONE", FakeJobs())
    fake_jobs.THE_ONE.submit(from_dict({"name": "here", "command": ["true"]}))
    leave_socket(tmp_path / "all" / "queue")
    leave_socket(tmp_path / "farandole" / "queue")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for variable in ("FARANDOLE_ON", "FARANDOLE_QUEUE"):
        monkeypatch.delenv(variable, raising=False)
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    "words", [("jobs",), ("status", "here"), ("logs", "here"), ("scale", "here", "3"), ("cancel", "here")]
)
def test_local_jobs_are_found_while_the_queue_is_down(
    words: tuple[str, ...], environment: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    warning = f"warning: the queue in {tmp_path}/farandole/queue does not answer: Connection refused; "
    assert capsys.readouterr().err.startswith(warning)


def test_error_of_the_queue_is_reported_for_a_job_that_is_not_local(
    environment: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("status", "elsewhere"), ("submit", "--", "true")):
        assert main(words) == 2
        assert "error: the queue in " in capsys.readouterr().err


@pytest.mark.parametrize("named", [{"FARANDOLE_ON": "queue"}, {"FARANDOLE_QUEUE": "/nowhere"}])
def test_named_place_is_never_replaced(
    named: Mapping[str, str],
    environment: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for variable, value in named.items():
        monkeypatch.setenv(variable, value)
    assert main(["jobs"]) == 2
    assert capsys.readouterr().err.startswith(("error: the queue in ", "error: there is no queue in /nowhere"))


def test_queue_of_all_users_is_found_while_the_users_own_is_down(
    environment: Mapping[str, str], tmp_path: Path, serve: list[socket.socket]
) -> None:
    assert address.find(environment) == tmp_path / "farandole" / "queue"
    (tmp_path / "all" / "queue" / "socket").unlink()
    serve.append(socket.socket(socket.AF_UNIX))
    serve[0].bind(str(tmp_path / "all" / "queue" / "socket"))
    serve[0].listen()
    assert address.find(environment) == tmp_path / "all" / "queue"
    assert client.unreachable(environment) is None


def test_dashboard_shows_local_jobs_while_the_queue_is_down(environment: Mapping[str, str]) -> None:
    warnings: list[Exception] = []
    assert [job.name for job in source_for(None, None, environment, warnings.append).jobs()] == ["here"]
    assert "does not answer" in str(warnings[0])
