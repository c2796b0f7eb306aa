"""The daemon's answers, and their handling in the client."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from farandole.control.jobs.errors import JobError
from farandole.control.queue.client import QueueClient
from farandole.control.queue.daemon import QueueDaemon
from farandole.control.queue.protocol import Ask, AskJobs, LogPiece, ReadLog


def test_internal_error_of_daemon_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        daemon = QueueDaemon(tmp_path)
        daemon._state.statuses = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        await daemon._server.start(tmp_path / "socket")
        client = QueueClient(tmp_path, {}, retry=0.0)
        with pytest.raises(JobError, match="internal error of the queue: ZeroDivisionError"):
            await asyncio.wait_for(asyncio.to_thread(client.ask, AskJobs()), 5.0)
        await daemon._server.close()
        daemon._store.close()

    asyncio.run(test())
    assert "in _answer" in capsys.readouterr().err


class Logs(QueueClient):
    """A queue that has logs of two attempts, of which the first was killed in the middle of a line."""

    pieces: ClassVar = {(1, 0): b"step 1\nste", (1, 10): b"", (2, 0): b"step 1\n"}

    def ask(self, what: Ask) -> Any:
        assert isinstance(what, ReadLog)
        data = self.pieces.get((what.attempt, what.offset), b"")
        after = (what.attempt, what.offset + len(data)) if data or what.attempt == 2 else (what.attempt + 1, 0)
        piece = LogPiece(data, *after, not data and what.attempt == 2)
        return {"data": piece.data, "attempt": piece.attempt, "offset": piece.offset, "is_over": piece.is_over}


def test_last_line_of_attempt_is_not_joined_with_next_attempt() -> None:
    assert list(Logs(Path(os.sep), {}).logs("a")) == ["step 1\n", "ste\n", "step 1\n"]
