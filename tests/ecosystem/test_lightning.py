"""`strategy="farandole"` for Lightning: it trains as DDP on gloo does, and survives lost workers. `make test-ecosystem`."""

from __future__ import annotations

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
