"""The reports of autotuning, and where its results are kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.worker.core import tuning_files
from farandole.worker.observe import tuning
from farandole.worker.observe.tuning import TuningWatch

REPORT = {
    "on": True,
    "done": True,
    "found": True,
    "summary": "autotuning has ended",
    "knobs": {"bucket": 1},
    "gain": 1.25,
    "samples": [{"phase": "search", "why": "", "knobs": {"bucket": 1}, "bytes_per_second": 1e9}],
}


def test_what_was_found_is_kept_when_its_log_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    kept: list[Any] = []
    monkeypatch.setattr(tuning, "tell_user", lambda level, text, *_: told.append(f"{level}: {text}"))
    monkeypatch.setattr(tuning_files, "file_for", lambda *_: tmp_path / "kept")
    monkeypatch.setattr(tuning_files, "write", lambda path, world, *found: kept.append(found))
    engine = SimpleNamespace(tuning=lambda: REPORT)
    settings = SimpleNamespace(autotune_log="/dev/full")
    watch = TuningWatch(SimpleNamespace(engine=engine, settings=settings, world=None))  # type: ignore[arg-type]
    watch.close()
    assert kept == [({"bucket": 1}, 1.25)]
    assert told == [
        "warning: the log of autotuning cannot be written to /dev/full: No space left on device",
        f"info: autotuning has ended; kept in {tmp_path / 'kept'}",
    ]
