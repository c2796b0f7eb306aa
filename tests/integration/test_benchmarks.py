"""The benchmarks run, and go on when a library does not. What they find is nobody's concern here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.conductor import Conductor, Contender, conducting
from benchmarks.hosts import BedError, bed_of
from benchmarks.peers.base import MODULES, ROOT, Launch, Stage
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
        NAME=name, missing=lambda: None, launches=lambda stage: [Launch(command(stage)) for command in commands]
    )


def worker(rank: int) -> Any:
    return lambda stage: (sys.executable, "-c", FAKE_WORKER, str(stage.socket), str(rank))


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
    stage = Stage("none", Topology(1, 1), tmp_path, tmp_path / "s", None)
    ends = fake("Ends", lambda stage: ("sh", "-c", "echo cannot begin; exit 1"))
    with pytest.raises(TeamFailed, match="cannot begin"):
        Team(stage, ends)


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


def test_a_quick_run_prints_a_table_and_keeps_the_numbers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "e", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "numbers.json").read_text())["cases"]
    (row,) = case["rows"]
    assert {"farandole", "gloo"} <= set(row["seconds"]), done.stdout + done.stderr
    assert "| world |" in done.stdout
