"""`farandole bench` on this machine. What it measures is not judged here."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", "bench", *arguments], capture_output=True, text=True, timeout=120
    )


def test_a_table_for_people() -> None:
    done = bench("-np", "2", "--sizes", "4,64K")
    assert done.returncode == 0, done.stderr
    title, empty, head, *rows = done.stdout.splitlines()
    assert title == "allreduce of f32, 2 workers on 1 host (shm), arena memory"
    assert empty == "" and head.split()[:3] == ["size", "median", "us"]
    assert [row.split()[:2] for row in rows] == [["4", "B"], ["64", "KiB"]]
    assert all("direct" in row and "share memory" in row for row in rows)


@pytest.mark.parametrize("collective", ["allgather", "broadcast", "reducescatter", "reduce", "alltoall"])
def test_numbers_for_programs(collective: str) -> None:
    done = bench("-np", "3", "--collective", collective, "--sizes", "100", "--memory", "ordinary", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["collective"], result["workers"], result["memory"]) == (collective, 3, "ordinary")
    (row,) = result["rows"]
    assert row["bytes"] >= 100 and 0 < row["best_us"] <= row["median_us"] and row["copy_us"] > 0
    assert row["algorithm"] and row["reason"]


def test_over_links_another_algorithm_runs() -> None:
    done = bench("-np", "2", "--transport", "tcp", "--sizes", "1K", "--json")
    result = json.loads(done.stdout)
    assert result["links"] == "tcp"
    assert result["rows"][0]["algorithm"] != "direct"


def test_a_failure_is_explained() -> None:
    done = bench("-np", "2", "-x", "FARANDOLE_TRANSPORT=pigeon")
    assert done.returncode != 0 and done.stdout == ""
    assert "pigeon" in done.stderr


def test_algorithms_are_told_without_gaps() -> None:
    rows = json.loads(bench("--algorithms", "--json").stdout)
    collectives = {"allreduce", "allgather", "broadcast", "reducescatter", "reduce", "alltoall"}
    assert {row["collective"] for row in rows} == collectives
    worlds: dict[tuple[object, ...], list[dict[str, int]]] = {}
    for row in rows:
        key = (row["collective"], row["workers"], row["hosts"], row["fewest_on_a_host"])
        worlds.setdefault(key, []).append(row)
    for ranges in worlds.values():
        assert ranges[0]["from_bytes"] == 0 and ranges[-1]["to_bytes"] is None
        for one, next_one in itertools.pairwise(ranges):
            assert one["to_bytes"] == next_one["from_bytes"]
    assert "all members share memory" in bench("--algorithms").stdout


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "farandole", "bench", "--algorithms"],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
