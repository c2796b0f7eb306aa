"""Other hosts, reached by a stand-in for ssh that runs commands on this machine."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import until

Start = Callable[..., Any]

# Where silence is not the matter: a launcher or an agent may have no processor for longer than it is taken for a cut.
PATIENT = ("--host-timeout", "20")

SSH = """\
#!/bin/sh
for last; do before=$host; host=$last; done
case $before in
old) exec {python} -c 'from farandole.base import installed; installed.own_version = lambda: "0.1"
from farandole.control.agent.agent import main; main()' ;;
dead) echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255 ;;
*) echo $$ > {directory}/ssh.$before; exec sh -c "$last" ;;
esac
"""


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    """A program that reaches hosts of any name, but not the dead one; the old one has another farandole."""
    program = tmp_path / "ssh"
    program.write_text(SSH.format(python=sys.executable, directory=tmp_path))
    program.chmod(0o755)
    return str(program)


def hosts_file(tmp_path: Path, *lines: str) -> str:
    (tmp_path / "new").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "new").replace(tmp_path / "hosts")
    return f"file:{tmp_path}/hosts"


def test_host_with_another_version_is_refused_and_dead_host_is_retried(start: Start, ssh: str, tmp_path: Path) -> None:
    source = hosts_file(tmp_path, "localhost:1", "old:1", "dead:1", "far:1")
    job = start("-np", "2", "--min-np", "2", "--hosts-from", source, "--ssh", ssh, *PATIENT)
    job.world(1, 2)
    job.says(r"warning: host old is left out: it has farandole 0\.1, but this machine has .* \(hint: install the same")
    job.says(r"warning: host dead cannot be used: it does not answer \(.*\); it is tried again in 2 s")
    assert len(re.findall("host old is left out", job.said)) == 1
    assert job.finish() == 0


def test_job_whose_first_worker_has_ended_waits_for_host_that_comes_later(start: Start, tmp_path: Path) -> None:
    """Its workers call no init(), so they do not wait for each other."""
    source = hosts_file(tmp_path, "localhost:1")
    alone = (
        sys.executable,
        "-c",
        "import os; print('worker', os.environ['FARANDOLE_WORKER'], os.getpid(), flush=True)",
    )
    job = start("-np", "2", "--min-np", "2", "--hosts-from", source, command=alone)
    first = job.says(r"worker 0 (\d+)")[1]
    until(lambda: not os.path.exists(f"/proc/{first}"), "the first worker has ended", 20)
    hosts_file(tmp_path, "localhost:2")
    job.says(r"worker 1 \d+")
    assert job.finish() == 0


def test_lost_connection_ends_workers_and_host_returns(start: Start, ssh: str, tmp_path: Path) -> None:
    source = hosts_file(tmp_path, "localhost:1", "far:1")
    job = start("-np", "2", "--min-np", "1", "--hosts-from", source, "--ssh", ssh, *PATIENT)
    far = job.world(1, 2)[1][1]
    job.hold(2)
    os.kill(int((tmp_path / "ssh.far").read_text()), signal.SIGKILL)
    job.world(2, 1)
    until(lambda: not os.path.exists(f"/proc/{far}"), "its worker is gone", 20)
    job.says(r"warning: host far is lost, with worker 1: the connection to its agent ended \(SIGKILL\)")
    job.let_in()
    assert [worker for worker, _ in job.world(3, 2).values()] == [0, 2]
    assert job.finish() == 0


def test_silent_host_is_excluded_and_returns(start: Start, ssh: str, tmp_path: Path) -> None:
    source = hosts_file(tmp_path, "localhost:1", "far:1")
    # More than the 1.75 s for which a launcher may well have no processor: its agent would take that for a cut.
    job = start("-np", "2", "--min-np", "1", "--hosts-from", source, "--ssh", ssh, "--host-timeout", "4")
    far = job.world(1, 2)[1][1]
    agent = int((tmp_path / "ssh.far").read_text())
    job.hold(2)
    os.kill(agent, signal.SIGSTOP)
    job.world(2, 1)
    job.says(r"warning: host far is lost, with worker 1: nothing was heard from it for")
    job.let_in()
    job.world(3, 2)
    until(lambda: not os.path.exists(f"/proc/{far}"), "its worker is gone", 20)
    assert job.finish() == 0
