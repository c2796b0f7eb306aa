"""Libraries that use torch.distributed train on farandole's backend as they do on gloo. `make test-ecosystem`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Launch = Callable[..., list[Any]]

pytestmark = pytest.mark.timeout(400)


def both(ours: list[Any], theirs: list[Any]) -> tuple[Any, Any]:
    """Return the report of each backend, after a check that two ranks of each have made one."""
    for reports, backend in ((ours, "farandole"), (theirs, "gloo")):
        assert [report.pop("backend") for report in reports] == [backend] * 2
    return sorted(ours, key=str), sorted(theirs, key=str)


def test_lightning_and_fabric_have_the_losses_of_gloo(launch: Launch) -> None:
    ours, theirs = both(launch("lightning_on_ddp.py", "farandole"), launch("lightning_on_ddp.py", "gloo"))
    # With two ranks, the sum of two numbers is the same in any order.
    assert ours == theirs
    losses = ours[0]["trainer"]["losses"]
    assert len(losses) == 30 and losses[-1] < losses[0]


@pytest.mark.parametrize("line", ["with init_process_group", "unchanged"])
def test_transformers_trainer_accumulates_saves_and_resumes(line: str, launch: Launch, tmp_path: Path) -> None:
    if line == "unchanged":
        reports = launch("transformers_training.py", tmp_path)
        assert [report["backend"] for report in reports] == ["gloo"] * 2
    else:
        ours = launch("transformers_training.py", tmp_path / "ours", "farandole")
        theirs = launch("transformers_training.py", tmp_path / "theirs", "gloo")
        reports, others = both(ours, theirs)
        assert reports == others
    for report in reports:
        whole, resumed = report["whole"], report["resumed"]
        assert whole["workers"] == 2 and len(whole["losses"]) == 8
        assert resumed["losses"] == whole["losses"]
        assert resumed["weights"] == whole["weights"]
        assert whole["evaluated"] < whole["losses"][0]


@pytest.mark.parametrize("line", ["with init_process_group", "unchanged"])
def test_accelerate_accumulates_saves_and_resumes(line: str, launch: Launch, tmp_path: Path) -> None:
    if line == "unchanged":
        reports = launch("accelerate_training.py", tmp_path)
        assert [report["backend"] for report in reports] == ["gloo"] * 2
    else:
        ours = launch("accelerate_training.py", tmp_path / "ours", "farandole")
        theirs = launch("accelerate_training.py", tmp_path / "theirs", "gloo")
        reports, others = both(ours, theirs)
        assert reports == others
    for report in reports:
        assert report["workers"] == 2 and report["resumed"] and report["rows"] == 100
        assert report["losses"][-1] < report["losses"][0] / 2
