"""`farandole kill`: one worker of a job is killed, with the announced consequences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.launcher.conftest import Job
from waiting import until

from farandole.control.launcher.daemon.local_jobs import connect

WAIT = """
signal.signal(signal.SIGUSR1, lambda *_: tell(f"told{rank}"))
tell(f"up{rank}")
while True:
    signal.pause()
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def farandole(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    return done.returncode, done.stdout, done.stderr


def test_killed_worker_ends_job_of_fixed_size(jobs: None, start: Callable[..., Job]) -> None:
    job = start(WAIT, 3, "--job", "drill")
    for rank in range(3):
        job.told(f"up{rank}")

    assert farandole("kill", "drill", "--rank", "3")[::2] == (
        2,
        "error: the job has no rank 3\nhint: its ranks are 0 to 2\n",
    )
    assert farandole("kill", "dril", "--rank", "0")[::2] == (2, "error: there is no job dril\nhint: these run: drill\n")
    code, out, err = farandole("kill", "--rank", "1", "--signal", "USR1")
    assert (code, out) == (0, "") and "rank 1 on " in err and "gets SIGUSR1" in err
    job.told("told1")
    assert not any((job.directory / f"told{rank}").exists() for rank in (0, 2))
    assert job.process.poll() is None

    code, _, err = farandole("kill", "drill", "--rank", "2")
    assert code == 0 and err.endswith("gets SIGKILL; the job has a fixed size, so it will end\n")
    code, _, err = job.finish()
    assert code == 128 + signal.SIGKILL and "rank 2 on host" in err and "failed first: it was killed by SIGKILL" in err
    assert farandole("kill", "drill", "--rank", "0")[0] == 2


def test_job_of_fixed_size_is_found_by_name(jobs: None, start: Callable[..., Job]) -> None:
    job = start(WAIT, 2, "--job", "drill")
    job.told("up1")
    assert farandole("hosts", "--json")[1].count('"workers"') == 1
    view = connect(os.environ).view("drill")
    assert (view.name, view.size, len(view.workers)) == ("drill", 2, 2)
    assert "a job named drill is already running" in farandole("run", "-np", "1", "--job", "drill", "true")[2]
    assert "has a fixed size" in farandole("scale", "drill", "3")[2]
    assert "is shown only where it was started" in farandole("logs", "drill")[2]
    assert farandole("stop", "drill")[0] == 0
    assert job.finish()[0] == 143
    assert farandole("jobs")[2] == "no job is running\n"


def test_killed_worker_of_elastic_job_is_replaced(jobs: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import farandole.numpy as hvd, os, time, pathlib\n"
        "hvd.init()\n"
        f"pathlib.Path({str(tmp_path)!r}, f'up{{os.getpid()}}').touch()\n"
        "time.sleep(600)\n"
    )
    words = ("run", "-np", "2", "--min-np", "1", "--job", "drill", sys.executable, str(script))
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: len(list(tmp_path.glob("up*"))) == 2, "two workers begin", 60)
        code, _, err = farandole("kill", "drill", "--rank", "1")
        assert code == 0 and err.endswith(
            "gets SIGKILL; the job goes on with 1 worker until another one has been started\n"
        )
        until(lambda: len(list(tmp_path.glob("up*"))) == 3, "another worker has been started", 60)
        assert process.poll() is None
    finally:
        farandole("stop", "drill")
        process.communicate(timeout=60)
