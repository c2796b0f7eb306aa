"""`strategy="farandole"` for Lightning trains as DDP on gloo does, and survives lost workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Launch = Callable[..., list[Any]]

pytestmark = pytest.mark.timeout(400)


def test_losses_and_weights_are_those_of_ddp_on_gloo(launch: Launch, tmp_path: Path) -> None:
    ours = sorted(launch("lightning_training.py", "farandole", tmp_path / "ours"), key=str)
    theirs = sorted(launch("lightning_training.py", "ddp", tmp_path / "theirs"), key=str)
    assert len(ours) == 2
    for report, other in zip(ours, theirs, strict=True):
        for part in report:
            # With two ranks, the sum of two numbers is the same in any order.
            assert report[part] == other[part], part
        plain = report["plain"]
        assert plain["workers"] == 2 and plain["steps"] == 45 and plain["metrics"]["accuracy"] > 0.5
        assert report["resumed"]["losses"] == plain["losses"][30:]
        assert report["resumed"]["weights"] == plain["weights"]
        assert report["accumulated"]["steps"] == 12


ELASTIC = ("-np", "3", "--min-np", "2", "--max-np", "3")


@pytest.mark.parametrize(("killed", "variables"), [(0, {}), (1, {}), (1, {"NORMALIZED": "1"})])
def test_killed_worker_costs_no_step_and_its_successor_goes_on_with_the_others(
    launch: Launch, tmp_path: Path, killed: int, variables: dict[str, str]
) -> None:
    reports = launch("lightning_elastic.py", tmp_path, killed, options=ELASTIC, **variables)
    by_worker = {report["worker"]: report for report in reports}
    assert sorted(by_worker) == sorted({0, 1, 2, 3} - {killed})
    newcomer = by_worker.pop(3)
    survivors = list(by_worker.values())
    # 30 steps an epoch, and one more for the 20 samples of the killed worker.
    for report in reports:
        assert (report["epoch"], report["step"]) == (4, 121)
        assert report["rate"] == pytest.approx(0.1 * 0.5**4)
        assert report["weights"] == reports[0]["weights"]
    for report in survivors:
        assert report["calls"] == len(report["counted"]) == 121
        assert report["validated"] == [[0, 30], [1, 61], [2, 91], [3, 121]]
    assert newcomer["calls"] == len(newcomer["counted"]) < 121 - 50
    assert newcomer["validated"][-1] == [3, 121]
    used = [(epoch, each) for report in reports for epoch, _, samples in report["counted"] for each in samples]
    assert len(used) == len(set(used))
    # The others lack what the killed worker has used: a third of the first epoch, and 20 samples in each of 10 steps.
    assert Counter(epoch for epoch, _ in used) == {0: 1797 - 599, 1: 1797 - 200, 2: 1797, 3: 1797}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"epoch={epoch}.ckpt" for epoch in range(4)]


def test_training_goes_on_from_its_checkpoint_after_all_workers_are_killed(launch: Launch, tmp_path: Path) -> None:
    (whole, *_) = launch("lightning_elastic.py", tmp_path / "whole", "none", options=ELASTIC)
    kept = ("--checkpoint-dir", str(tmp_path / "steps"), "--checkpoint-every", "0.01", "--resume", "auto")
    resumed = launch("lightning_elastic.py", tmp_path / "resumed", "all", options=(*ELASTIC, *kept))
    assert whole["step"] == whole["calls"] == 120
    assert sorted(report["worker"] for report in resumed) == [3, 4, 5]
    for report in resumed:
        assert report["weights"] == whole["weights"]
        assert (report["epoch"], report["step"]) == (4, 120)
        assert report["calls"] < 120
