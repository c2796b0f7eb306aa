"""Wall clocks that jump by hours, and differ by hours, while a training goes on."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Training
from wall_clocks import WallClocks

# Called as ssh is; every host is this machine.
SSH = """\
#!/bin/sh
for last; do :; done
exec sh -c "$last"
"""
# A launcher or an agent may have no processor for longer than silence is taken for a cut.
PATIENT = ("--host-timeout", "20")
FORWARD_AND_BACK = (5, -7, 2, -3, 11)


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClocks:
    """Clocks of all processes that the test starts, made to jump by `jump`."""
    clocks = WallClocks(tmp_path)
    for name, value in clocks.environment.items():
        monkeypatch.setenv(name, value)
    return clocks


def test_wall_clocks_that_jump_disturb_nothing(
    train: Callable[..., Training], clocks: WallClocks, tmp_path: Path
) -> None:
    """Each clock jumps otherwise: of workers, agents, client and daemon. A newcomer has the right time."""
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    hosts = ("-H", "localhost:2,far:1", "--ssh", str(ssh), *PATIENT)
    training = train("-np", "3", "--min-np", "1", "--max-np", "3", *hosts)
    training.await_steps(5, size=3)
    for turn in range(len(FORWARD_AND_BACK)):
        clocks.jump((*FORWARD_AND_BACK[turn:], *FORWARD_AND_BACK[:turn]))
        training.await_steps(15, size=3)
    workers = [training.books.pid(worker) for worker in range(3)]
    assert len({clocks.of(pid) for pid in workers}) == 3
    assert re.findall(r"as generation (\d+)", training.job.said) == ["1"]
    os.kill(workers[2], signal.SIGKILL)
    training.job.says("rank 2 .* was killed by SIGKILL; 2 workers go on as generation 2")
    training.await_steps(5, size=3)
    training.job.says("worker 3 .* joins as rank 2; 3 workers go on as generation 3")
    clocks.jump([0])
    training.await_steps(15, size=3)
    assert re.findall(r"as generation (\d+)", training.job.said) == ["1", "2", "3"]
    assert "warning" not in training.job.said
    training.finish()
