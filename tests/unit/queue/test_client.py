"""The client of a queue, without a queue."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_world import refused

from farandole.jobs.spec import from_dict
from farandole.queue.client import QueueClient


def test_what_is_no_text_is_told_and_by_which_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = from_dict({"name": "a", "command": ["true"]})
    client = QueueClient(tmp_path, {"HOME": "/", "OLD": "caf\udce9"}, 0.0)
    said = refused(lambda: client.submit(spec))
    assert said.startswith("Refused: the variable OLD is no text in UTF-8") and "env -u OLD" in said
    words = from_dict({"name": "a", "command": ["cat", "caf\udce9"]})
    (tmp_path / "socket").touch()
    said = refused(lambda: QueueClient(tmp_path, {}, 0.0).submit(words))
    assert said.startswith("Refused: 'caf\\udce9' is no text in UTF-8")
