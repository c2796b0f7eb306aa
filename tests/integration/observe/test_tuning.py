"""Autotuning in real worlds: it ends, tells, keeps, and begins the next time where it ended."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from worlds import World

OpenWorld = Callable[..., World]
SMALL = {
    "FARANDOLE_AUTOTUNE_WARMUP_SAMPLES": "1",
    "FARANDOLE_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "FARANDOLE_AUTOTUNE_MAX_SAMPLES": "6",
}


def train(most_steps: int) -> tuple[list[str], dict[str, Any], str]:
    """Take steps until autotuning has ended; return what was wrong, its report, and what was told."""
    import array
    import contextlib
    import io

    from farandole.base.request_kind import Kind
    from farandole.worker.core import basics, buffers
    from farandole.worker.core.dtype import Sum

    told = io.StringIO()
    wrong = []
    with contextlib.redirect_stderr(told):
        basics.init()
        import farandole.worker.observe.observer  # noqa: F401  # As every front end does.

        engine, ranks = basics.current().engine, basics.size() * (basics.size() + 1) / 2
        done = array.array("i", [0])
        for _ in range(most_steps):
            for count in (10, 20_000, 200_000):
                data = array.array("f", [basics.rank() + 1.0]) * count
                buffers.allreduce(data, op=Sum, name=f"grad.{count}")
                if data != array.array("f", [ranks]) * count:
                    wrong.append(f"{count} elements")
            # Rank 0 knows; all shall stop together.
            done[0] = engine.tuning()["done"]
            buffers.collective(Kind.BROADCAST, done, name="done")
            if done[0]:
                break
        report = engine.tuning()
        basics.shutdown()
    return wrong, report, told.getvalue()


def test_it_ends_tells_and_keeps_what_it_found(open_world: OpenWorld, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    cache = {"XDG_CACHE_HOME": str(tmp_path), **SMALL}
    world = open_world(2, FARANDOLE_AUTOTUNE="1", FARANDOLE_AUTOTUNE_LOG=str(log), **cache)
    (wrong, report, told), (wrong_too, _, silent) = world.run(train, 20_000)
    assert wrong == wrong_too == []
    assert report["done"] and report["on"]
    assert report["summary"] in told and silent == ""
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [row["phase"] for row in rows[:2]] == ["warm-up", "search"]
    assert rows[-1]["phase"] == "done"
    assert len(rows) == len(report["samples"]) + 1
    assert {name: int(rows[-1][name]) for name in report["knobs"]} == report["knobs"]
    kept = list(tmp_path.glob("farandole/tuning/2-*.json"))
    assert len(kept) == report["found"], "the defaults need not be kept"
    if kept:
        assert json.loads(kept[0].read_text())["knobs"] == report["knobs"]
        assert f"kept in {kept[0]}" in told


def test_the_next_job_verifies_what_was_kept(open_world: OpenWorld, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"knobs": {"chunk_bytes": 262144}}))
    world = open_world(2, FARANDOLE_AUTOTUNE="1", FARANDOLE_TUNING=str(path), **SMALL)
    (_, report, _), _ = world.run(train, 20_000)
    assert report["done"]
    samples = report["samples"]
    assert samples[0]["knobs"]["chunk_bytes"] == 262144, "it begins with what was kept"
    assert [sample["phase"] for sample in samples[1:7]] == ["verification"] * 6
    assert json.loads(path.read_text())["knobs"]["chunk_bytes"] > 0


def test_a_file_that_is_named_is_used_without_tuning(open_world: OpenWorld, tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"knobs": {"ring_bytes": 1}}))
    world = open_world(2, FARANDOLE_TUNING=str(path))
    assert world.run(ring_bytes) == [1, 1]
    world = open_world(2, FARANDOLE_TUNING=str(path), FARANDOLE_RING_BYTES="7")
    assert world.run(ring_bytes) == [7, 7], "what is set wins"


def ring_bytes() -> int:
    """Return the ring_bytes in use; check that the choice of an algorithm is reported."""
    from farandole.base.request_kind import Kind
    from farandole.worker.core import basics, buffers
    from farandole.worker.core.dtype import Sum

    basics.init()
    buffers.barrier()
    engine = basics.current().engine
    choice = engine.choose(Kind.ALLREDUCE, Sum, 0, 1000)
    assert choice["algorithm"] == "direct" and choice["reason"]
    with pytest.raises(ValueError, match="no algorithm"):
        engine.choose(Kind.BARRIER, Sum, 0, 0)
    buffers.barrier()  # Nobody leaves before all have asked.
    found: int = engine.tuning()["knobs"]["ring_bytes"]
    basics.shutdown()
    return found


def test_a_job_that_ends_before_it_says_so(open_world: OpenWorld, tmp_path: Path) -> None:
    world = open_world(2, FARANDOLE_AUTOTUNE="1", XDG_CACHE_HOME=str(tmp_path))
    (_, report, told), _ = world.run(train, 2)
    assert not report["done"]
    assert "the job has ended before the end of autotuning, so nothing is kept" in told
    assert list(tmp_path.iterdir()) == []
