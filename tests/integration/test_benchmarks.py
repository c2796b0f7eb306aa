"""The benchmarks run, and go on if a library fails. Their results are not checked here."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.commands import time_command, time_start
from benchmarks.conductor import Conductor, Contender, conducting
from benchmarks.hosts import BedError, bed_of
from benchmarks.peers.base import MODULES, ROOT, Launch, Setup
from benchmarks.sharing import models
from benchmarks.teams import Team, TeamFailed
from benchmarks.topology import Topology

# A library in 20 lines: a worker that says hello and answers with times, without any world.
FAKE_WORKER = """
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
lines = connection.makefile("rw")
print(json.dumps({"rank": int(sys.argv[2])}), file=lines, flush=True)
for line in lines:
    command = json.loads(line)
    if command["do"] == "prepare" and command["work"] == "none":
        answer = {"unsupported": "has none"}
    elif command["do"] == "prepare":
        answer = {"note": None}
    elif command["do"] == "time" and command["slot"] == "dies":
        print("last words", flush=True)
        os._exit(3)
    else:
        answer = {"seconds": 0.25 * (1 + int(sys.argv[2]))}
    print(json.dumps(answer), file=lines, flush=True)
"""


def fake(name: str, *commands: Any) -> Any:
    return SimpleNamespace(
        NAME=name, missing=lambda: None, launches=lambda setup: [Launch(command(setup)) for command in commands]
    )


def worker(rank: int) -> Any:
    return lambda setup: (sys.executable, "-c", FAKE_WORKER, str(setup.socket), str(rank))


def add_peers(monkeypatch: pytest.MonkeyPatch, **peers: Any) -> None:
    for name, module in peers.items():
        monkeypatch.setitem(MODULES, name, f"fakes.{name}")
        monkeypatch.setitem(sys.modules, f"fakes.{name}", module)


def measure(conductor: Conductor, *contenders: Contender) -> Any:
    return conductor.measure(Topology(1, 2), contenders, {})


def test_the_slowest_worker_counts_and_what_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    add_peers(monkeypatch, sound=fake("Sound", worker(0), worker(1)), frail=fake("Frail", worker(1), worker(0)))
    with conducting(rounds=3, seconds=0.01) as conductor:
        row = measure(
            conductor,
            Contender("sound", "sound", "any"),
            Contender("dies", "frail", "any"),
            Contender("lacks", "sound", "none"),
        )
        assert row.seconds == {"sound": [0.5] * 3}
        assert row.notes == {"dies": "failed", "lacks": "has none"}
        assert "last words" in conductor.failures[0]
        # Not tried again.
        assert measure(conductor, Contender("dies", "frail", "any")).notes == {"dies": "failed before"}


def test_workers_that_end_before_they_join_are_told_of(tmp_path: Path) -> None:
    setup = Setup("none", Topology(1, 1), tmp_path, tmp_path / "s", None)
    ends = fake("Ends", lambda setup: ("sh", "-c", "echo cannot begin; exit 1"))
    with pytest.raises(TeamFailed, match="cannot begin"):
        Team(setup, ends)


def test_hosts_hear_each_other_and_are_gone_afterwards(tmp_path: Path) -> None:
    listening = "import socket; print(socket.create_server(('{}', 0)).getsockname()[0])"
    try:
        with bed_of(2, tmp_path) as bed:
            bed.shape(10**9)
            command = [str(bed.agent), bed.addresses[1], f'{sys.executable} -c "{listening.format(bed.addresses[1])}"']
            done = subprocess.run([*bed.enter(0), *command], capture_output=True, text=True, timeout=30, check=True)
            assert done.stdout.strip() == bed.addresses[1]
            name = bed.enter(0)[3]
    except BedError as why:
        pytest.skip(str(why))
    assert name not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_a_command_that_fails_is_told_of_and_not_tried_again(tmp_path: Path) -> None:
    tried = tmp_path / "tried"
    with conducting(rounds=3, seconds=0.01) as conductor:
        row = time_command(conductor, "fails", ("sh", "-c", f"echo once >> {tried}; echo why >&2; exit 1"))
        assert (row.seconds, row.notes) == ({}, {"time": "failed"})
        assert "why" in conductor.failures[0]
        assert tried.read_text() == "once\n"


def test_a_start_counts_until_the_last_worker_was_done() -> None:
    # Workers that note the seconds 1 and 2 of a clock that has gone on since.
    notes = 'for worker in 1 2; do echo "${worker}000000000" > "$BENCHMARK_FOLDER/$worker"; done'
    with conducting(rounds=1, seconds=0.01) as conductor:
        before = time.monotonic()
        (seconds,) = time_start(conductor, "starts", ("sh", "-c", notes)).seconds["time"]
        assert 2 - time.monotonic() <= seconds <= 2 - before
        assert time_start(conductor, "lacks one", ("sh", "-c", notes), workers=3).notes == {"time": "failed"}
        assert "2 of 3 workers" in conductor.failures[0]


def run_quickly(letter: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Run a case and return what it keeps of it, and what it printed."""
    command = [sys.executable, "-m", "benchmarks", letter, "--quick", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "numbers.json").read_text())
    assert [case["letter"] for case in results["cases"]] == [letter]
    return results, done.stdout + done.stderr


def test_a_quick_run_prints_a_table_and_keeps_the_numbers(tmp_path: Path) -> None:
    results, printed = run_quickly("e", tmp_path)
    (row,) = results["cases"][0]["rows"]
    assert {"farandole", "gloo"} <= set(row["seconds"]), printed
    assert "| world |" in printed


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_the_cases_of_tensorflow_measure_all_contenders(tmp_path: Path) -> None:
    results, printed = run_quickly("tf-gradients", tmp_path)
    (row,) = results["cases"][0]["rows"]
    assert {"farandole", "farandole, one grouped op", "MultiWorkerMirroredStrategy"} <= set(row["seconds"]), printed


def test_launching_is_measured_on_hosts_and_on_simulated_ones(tmp_path: Path) -> None:
    results, printed = run_quickly("k", tmp_path)
    assert results["failures"] == []
    rows = {row["keys"]["what"]: row for row in results["cases"][0]["rows"]}
    for flag in ("with pre-flight", "--no-preflight"):
        simulated = rows[f"`true` on 2 simulated hosts, {flag}"]
        assert len(simulated["seconds"]["time"]) == 1
        assert simulated["notes"]["launcher's memory"].endswith(" MB")
    start = rows["first allreduce on 3 hosts x 2 workers"]
    # Where no hosts can be made, the table says why.
    assert start["notes"]["python and imports"].endswith("%") if start["seconds"] else start["notes"]["time"], printed


def test_the_jobs_of_the_queues_benchmark_go_on_where_they_were(tmp_path: Path) -> None:
    """A training in two parts comes to the loss of one process that takes all steps."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, "-m", *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    same = ("--step", "0.01", "--batch", "48", "--kept", str(tmp_path / "kept"))
    said = run("benchmarks.sharing.training_job", "language", "--steps", "8", *same)
    loss = models.train_alone("language", 8, 48).loss
    assert float(re.findall(r"loss (\S+) ", said)[0]) == pytest.approx(loss, abs=1e-6)
    assert run("benchmarks.sharing.training_job", "language", "--steps", "8", *same).count("workers") == 0, "it is over"
    assert "2 workers" in run("benchmarks.sharing.timed_job", "--steps", "4", "--step", "0.01")
