"""The table of scheduling policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import scheduler

FIGURES = {
    "average": 3600.0,
    "p99": 7200.0,
    "waiting": 360.0,
    "makespan": 36_000.0,
    "utilisation": 0.5,
    "fairness": 1.25,
    "fairness_worst": 3.0,
    "restarts": 0.5,
}


def test_a_table_for_each_cluster_with_the_workloads_that_were_simulated() -> None:
    kept = {
        "4x4 | workload-1 | fcfs": FIGURES,
        "4x4 | workload-2 | fcfs": {**FIGURES, "average": 7200.0},
        "4x4 | workload-2 | srtf": FIGURES,
        "8x4 | workload-1 | fcfs": FIGURES,
    }
    lines = scheduler.table(kept)
    assert "| policy | 1 | 2 | mean | p99 | wait | makespan | used | fairness | worst | restarts |" in lines
    assert "| fcfs | 1.000 | 2.000 | 1.500 | 2.0 | 0.100 | 10.0 | 50% | 1.25 | 3.0 | 0.5 |" in lines
    assert "| srtf |  | 1.000 | 1.000 | 2.0 | 0.100 | 10.0 | 50% | 1.25 | 3.0 | 0.5 |" in lines
    assert [line for line in lines if "x4" in line] == ["4x4", "8x4"]


def test_kept_figures_are_printed_and_unknown_rows_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"4x4 | workload-1 | fcfs": FIGURES}))
    assert scheduler.main(["--from", "--output", str(kept)]) == 0
    assert "| fcfs | 1.000 | 1.000 |" in capsys.readouterr().out
    monkeypatch.setenv("FARANDOLE_TRACES", "/no/such/archive")
    with pytest.raises(SystemExit, match="unknown row slowest"):
        scheduler.main(["--rows", "slowest"])
