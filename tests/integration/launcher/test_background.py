"""An error in a background task of a launcher, which is a bug, is told to the user."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise import supervisor


@pytest.mark.parametrize("elastic", [None, Elastic(1, 1)], ids=["fixed", "elastic"])
def test_error_of_background_task_is_told_once_and_the_job_ends_well(
    monkeypatch: pytest.MonkeyPatch, elastic: Elastic | None, tmp_path: Path
) -> None:
    async def fail(*_: Any) -> None:
        raise KeyError("h7")

    monkeypatch.setattr(supervisor, "watch_end", fail)
    out, err = io.StringIO(), io.StringIO()
    spec = LaunchSpec(command=(sys.executable, "-c", "pass"), num_proc=1, elastic=elastic)
    machine = Machine("here", 1, 0, str(tmp_path), dict(os.environ))
    outcome = asyncio.run(launch(spec, machine, Console(text_writer(out), text_writer(err))))
    assert outcome.exit_code == 0, err.getvalue()
    assert err.getvalue().count("error: part of the launcher has failed: KeyError: 'h7'") == 1
