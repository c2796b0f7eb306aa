"""What the driver does with the answer of a job on Spark Connect."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.spark import connect
from farandole.spark.connect_task import Answer
from farandole.spark.driver import Options


class FullStream:
    """A stream of the user's that takes nothing."""

    def write(self, text: str) -> None:
        raise LookupError(f"no room for {text}")


def test_stream_that_fails_does_not_lose_the_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Answer(JobOutcome(0, results=(b"value",)), stdout="printed")
    monkeypatch.setattr(connect._Query, "run", lambda _: (answer, {}))
    session: Any = None
    options = Options.read(None, None, FullStream(), None, 1, False, None, range(5000, 5010))
    assert connect.run_by_connect(session, b"call", 1, options).results == (b"value",)
    assert "warning: output is no longer written: LookupError: no room for printed" in capsys.readouterr().err
