"""The output of `farandole queue`, and generated names of jobs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from queue_world import BOB, FakeDaemon, World, hosts

from farandole.control.cli.queue import _lines
from farandole.control.queue import state
from farandole.control.queue.protocol import Submit
from farandole.control.queue.settings import QueueSettings, changed


def test_settings_are_shown_so_that_they_can_be_set_again() -> None:
    settings = changed(
        QueueSettings(), ["keep=1234567", "quantum=0.5", "queue.lab=-", "user.ann=slots=4", "admins=ann,bob"]
    )
    shown = _lines(msgspec.to_builtins(settings))
    assert "keep=1234567" in shown and "quantum=0.5" in shown
    assert changed(QueueSettings(), shown) == settings


def test_names_are_generated_when_short_ones_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_FIRST", "amber")
    monkeypatch.setattr(state, "_SECOND", "fox")
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:1"), QueueSettings())
    submit = Submit({"command": ["true"]}, {}, "/", "")
    names = {daemon.state.submit(submit, BOB, 0.0) for _ in range(95)}
    assert len(names) == 95 and all(name.startswith("amber-fox-") for name in names)
    daemon.close()
