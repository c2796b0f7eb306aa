"""`farandole test` on this machine. How fast it is is not judged here, but that it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def self_test(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farandole", "test", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(("workers", "transport"), [(2, "shm"), (4, "shm"), (2, "tcp"), (4, "tcp")])
def test_everything_is_checked_and_measured(workers: int, transport: str) -> None:
    done = self_test("-np", str(workers), "--transport", transport, "--quick", "--json")
    document = json.loads(done.stdout)
    report = document["report"]
    assert (report["workers"], report["hosts"], report["links"]) == (workers, 1, transport)
    assert report["checks"] > 30 and report["problems"] == []
    assert [node["rank"] for node in report["nodes"]] == list(range(workers))
    assert len(report["pairs"]) == workers * (workers - 1) // 2
    route = {"shm": "shared memory", "tcp": "127.0.0.1 -> 127.0.0.1"}[transport]
    for pair in report["pairs"]:
        assert pair["latency_us"] > 0 and pair["there"] > 0 and pair["back"] > 0 and pair["route"] == route
    assert report["whole"]["latency_us"] > 0 and report["whole"]["seconds"] > 0
    # A machine that is busy with other tests may have slow links.
    assert document["good"] == (done.returncode == 0) == (document["findings"] == [])
    assert done.returncode in (0, 1), done.stderr


def test_a_picture_for_people() -> None:
    done = self_test("-np", "2")
    lines = done.stdout.splitlines()
    assert lines[0] == "2 workers on 1 host (shm)"
    assert lines[2].startswith("collectives   ") and lines[2].endswith(" checks, all right")
    assert "GB/s, from the row to the column" in lines
    assert done.stdout.endswith("all good\n" if done.returncode == 0 else " found\n")


def test_a_world_of_one() -> None:
    done = self_test("-np", "1", "--quick")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "all good"), done.stderr


def test_a_worker_that_dies_is_told() -> None:
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "farandole", "test", "-np", "3", "--transport", "tcp", "-x", f"TEST_MARK={mark}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        os.kill(await_worker(mark, rank=1), signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (1, ""), err
    assert "error: rank 1 on host" in err and "failed first: it was killed by SIGKILL" in err
    assert "\nhint: " in err


def test_a_setting_that_cannot_be_is_told() -> None:
    done = self_test("-np", "2", "-x", "FARANDOLE_TRANSPORT=pigeon")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pigeon" in done.stderr


def await_worker(mark: str, rank: int) -> int:
    """Return the process of a worker of the job that bears the mark, once it is there."""
    wanted = {f"TEST_MARK={mark}".encode(), f"FARANDOLE_RANK={rank}".encode()}
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted <= set(path.read_bytes().split(b"\0")):
                    return int(path.parent.name)
            except OSError:
                pass  # It has ended.
        time.sleep(0.02)
    raise AssertionError("no worker came")
