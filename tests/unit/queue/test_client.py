"""The client of a queue, without a queue."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from queue_world import refused

from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.spec_file import read_spec
from farandole.control.queue import protocol
from farandole.control.queue.client import QueueClient
from farandole.control.queue.protocol import LogPiece


def test_preview_is_a_job_file_that_submit_reads(tmp_path: Path) -> None:
    spec = from_dict({"name": "a", "command": ["true"], "workers": "2:8", "workingDirectory": str(tmp_path)})
    shown = tmp_path / "job.json"
    shown.write_text(QueueClient(tmp_path, {}, 0.0).preview(spec))
    assert read_spec(shown) == spec


def test_missing_script_is_an_error_before_the_queue_is_asked(tmp_path: Path) -> None:
    spec = from_dict({"command": ["python", "train.py"], "workingDirectory": str(tmp_path)})
    client = QueueClient(tmp_path / "nowhere", {}, 0.0)
    for ask in (client.submit, client.preview):
        assert refused(lambda ask=ask: ask(spec)).startswith("BadSpec: there is no script 'train.py' (in ")


def test_no_queue_was_ever_started_there_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a daemon that may be about to start again is waited for."""
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    nowhere = tmp_path / "nowhere"
    said = refused(lambda: QueueClient(nowhere, {}).cluster())
    assert said.startswith(f"Unreachable: there is no queue in {nowhere} | start one: farandole queue start --hosts")


class Chatty(QueueClient):
    """A client of a queue whose job `a` has had one attempt, and prints in its second one without an end."""

    def ask(self, what: protocol.Ask) -> Any:
        assert isinstance(what, protocol.ReadLog)
        if what.attempt == 1:
            data = b"old\n"[what.offset :]
            piece = LogPiece(data, 1, 4, False) if data else LogPiece(b"", 2, 0, False)
        else:
            piece = LogPiece(b"new\n", 2, what.offset + 4, False)
        return msgspec.structs.asdict(piece)


def test_reading_log_without_follow_ends_while_job_prints(tmp_path: Path) -> None:
    lines = list(itertools.islice(Chatty(tmp_path, {}, 0.0).logs("a"), 100))
    assert lines[:2] == ["old\n", "new\n"] and len(lines) <= 3
    following = Chatty(tmp_path, {}, 0.0).logs("a", follow=True)
    assert len(list(itertools.islice(following, 100))) == 100


class Waiting(QueueClient):
    """A client of a queue whose job `a` waits: it has had no attempt."""

    asked = 0

    def ask(self, what: protocol.Ask) -> Any:
        self.asked += 1
        assert self.asked < 100, "it asks without a rest, and without an end"
        return msgspec.structs.asdict(LogPiece(b"", 0, 0, self.asked > 5))


def test_waiting_job_has_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("time.sleep", rests.append)
    waiting = Waiting(tmp_path, {}, 0.0)
    assert list(waiting.logs("a")) == [] and waiting.asked == 1
    waiting.asked = 0
    assert list(waiting.logs("a", follow=True)) == [] and len(rests) == 5


def test_lost_answer_is_reported_as_uncertain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = socket.socketpair()
    there.close()
    monkeypatch.setattr("farandole.control.queue.client.connect_socket", lambda state, seconds: here)
    client = QueueClient(tmp_path, {}, retry=-1.0)
    said = refused(lambda: client.submit(from_dict({"name": "a", "command": ["true"]})))
    assert "the request may or may not have been carried out" in said
    monkeypatch.undo()
    assert "it is not known" not in refused(lambda: client.cancel("a")), "it was not even asked"
    assert "it is not known" not in refused(client.jobs)
