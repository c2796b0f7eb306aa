"""The verbs about jobs on a real Slurm: `farandole submit --on slurm` and its like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.started_by.slurm import Slurm
from waiting import until

Farandole = Callable[..., tuple[int, str, str]]


@pytest.fixture
def farandole(slurm_daemons: Slurm, tmp_path: Path) -> Farandole:
    """Return a function that runs a command of ours on a login node."""
    environment = os.environ | slurm_daemons.environment
    environment |= {"XDG_STATE_HOME": str(tmp_path / "state"), "FARANDOLE_ON": "slurm"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "farandole", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            cwd=tmp_path,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def status(farandole: Farandole, name: str) -> dict[str, Any]:
    code, out, err = farandole("status", name, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def becomes(farandole: Farandole, name: str, state: str) -> None:
    until(lambda: status(farandole, name)["state"] == state, lambda: f"{name}: {status(farandole, name)}", 60)


def test_a_job_is_submitted_shown_and_ends_with_its_code(farandole: Farandole) -> None:
    script = "echo rank $FARANDOLE_RANK of $SLURM_NTASKS; exit $((SLURM_PROCID * 0 + 3))"
    code, out, err = farandole("submit", "--name", "a", "-np", "2", "--", "sh", "-c", script)
    assert code == 3, out + err
    assert "of 2\n" in out
    assert "farandole: a has failed: it exited with code 3" in err
    assert status(farandole, "a")["exitCode"] == 3


def test_a_job_is_suspended_resumed_and_cancelled(farandole: Farandole, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    script = f"echo begun >> {begun}; sleep 300"
    code, out, err = farandole(
        *("submit", "--detach", "--name", "b", "--suspension", "requeue", "--", "sh", "-c", script)
    )
    assert (code, out) == (0, "b\n"), err
    becomes(farandole, "b", "Running")
    until(begun.exists, "it has begun")
    assert farandole("scale", "b", "2")[0] == 2
    assert farandole("suspend", "b")[0] == 0
    becomes(farandole, "b", "Suspended")
    assert farandole("resume", "b")[0] == 0
    assert farandole("cancel", "b")[0] == 0
    becomes(farandole, "b", "Cancelled")


def test_what_slurm_refuses_is_told(farandole: Farandole) -> None:
    code, out, err = farandole("submit", "--detach", "--queue", "nowhere", "--", "true")
    assert (code, out) == (2, "")
    assert err.startswith("error: sbatch: ") and "partition" in err
