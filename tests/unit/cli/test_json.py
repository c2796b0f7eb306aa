"""The shape of what `--json` prints is the one that is documented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from farandole.control.cli.main import main
from farandole.control.jobs.status import Event, JobState, JobStatus, RankStatus, to_dict
from farandole.control.launcher.supervise.control import HostRow

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "shell.md").read_text()


def documented(what: str) -> set[str]:
    """Return the names in a paragraph of the page, such as the one about a job."""
    found = re.search(rf"\*\*{what}\*\* has (.*?)\n\n", PAGE + "\n", re.DOTALL)
    assert found
    return set(re.findall(r"`(\w+)`", found[1]))


def test_a_job() -> None:
    status = JobStatus("a", JobState.RUNNING, ranks=(RankStatus(0),), events=(Event(0.0, ""),))
    plain = to_dict(status)
    nested = set(plain["ranks"][0]) | set(plain["events"][0])
    assert documented("A job") == set(plain) | nested | {state.value for state in JobState}


def test_a_host_of_a_job() -> None:
    assert documented("A host of a job") == set(msgspec.to_builtins(HostRow("h", 1, (0,), "ready")))


def test_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"project", "settings"}
    assert documented("A setting") - {"worker", "launcher"} == {key for row in told["settings"] for key in row}


def test_policies(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    assert main(["simulate", "--policies", "--json"]) == 0
    assert {frozenset(row) for row in json.loads(capsys.readouterr().out)} == {frozenset({"name", "sentence"})}
