"""Agents that start agents over ssh: a script that is called like ssh, and runs an agent on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.start_tree import started_from

Start = Any

# It knows from which host it is called, notes the pair, and refuses some of them. Hosts named dead do not exist.
SSH = """\
#!/bin/sh
for last; do before=$host; host=$last; done
pair="$FAKE_HOST>$before"
if grep -qx "$pair" {directory}/refused; then echo 'Permission denied (publickey).' >&2; exit 255; fi
case $before in dead) echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255;; esac
echo "$pair $$" >> {directory}/calls
export FAKE_HOST=$before XDG_CACHE_HOME={directory}/cache/$before
exec sh -c "$last"
"""
# Launchers and agents may have no processor for longer than it is taken for a cut.
PATIENT = ("--host-timeout", "30")
HERE = "import os; print('from', os.environ['FAKE_HOST'], flush=True)"
WAITS = """
tell(f"pid{rank}", os.getpid())
time.sleep(1000)
"""


class FakeSsh:
    """Options that reach hosts by the script, and what it has noted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.program = directory / "ssh"
        self.program.write_text(SSH.format(directory=directory))
        self.program.chmod(0o755)
        (directory / "calls").touch()
        self.refuse()

    def refuse(self, *pairs: str) -> None:
        (self._directory / "refused").write_text("".join(f"{pair}\n" for pair in pairs))

    def options(self, hosts: int, fanout: int = 2) -> tuple[str, ...]:
        names = ",".join(f"h{number}" for number in range(1, hosts + 1))
        return ("-H", names, "--ssh", str(self.program), "--ssh-fanout", str(fanout), *PATIENT)

    @property
    def calls(self) -> dict[str, str]:
        """The host from which each host's agent was started; "": the launcher's machine."""
        return {to: origin for origin, to, _ in self._noted()}

    def process(self, host: str) -> int:
        """Return the process that was started for a host: its agent, which has taken the place of the script."""
        (found,) = [int(pid) for _, to, pid in self._noted() if to == host]
        return found

    def _noted(self) -> list[tuple[str, str, str]]:
        lines = (self._directory / "calls").read_text().splitlines()
        return [(*line.split()[0].split(">"), line.split()[1]) for line in lines]  # type: ignore[misc]


@pytest.fixture
def ssh(tmp_path: Path) -> FakeSsh:
    return FakeSsh(tmp_path)


@pytest.mark.parametrize("hosts", [6, 14], ids=["depth 2", "depth 3"])
def test_job_runs_on_tree_of_hosts(start: Start, ssh: FakeSsh, hosts: int) -> None:
    code, out, err = start.command([sys.executable, "-c", HERE], hosts, *ssh.options(hosts)).finish(120)
    assert (code, sorted(out.splitlines())) == (0, sorted(f"[{n}]<stdout>:from h{n + 1}" for n in range(hosts))), err
    names = [f"h{number}" for number in range(1, hosts + 1)]
    tree = started_from([Host(name) for name in names], SshOptions(fanout=2))
    assert ssh.calls == {name: tree.get(name, "") for name in names}
    assert list(ssh.calls.values()).count("") == 2
    assert "cannot be reached" not in err


@pytest.mark.parametrize("fanout", [0, 3, 4])
def test_launcher_reaches_all_hosts_itself(start: Start, ssh: FakeSsh, fanout: int) -> None:
    code, _, err = start.command(["true"], 3, *ssh.options(3, fanout)).finish()
    assert code == 0, err
    assert ssh.calls == {"h1": "", "h2": "", "h3": ""}


def test_hosts_that_cannot_be_reached_from_within_are_reached_from_here(start: Start, ssh: FakeSsh) -> None:
    ssh.refuse("h1>h2", "h1>h4", "h5>h6")
    code, _, err = start.command([sys.executable, "-c", HERE], 7, *ssh.options(7)).finish(120)
    assert code == 0, err
    assert ssh.calls == {"h1": "", "h2": "", "h3": "h2", "h4": "", "h5": "", "h6": "", "h7": "h5"}
    told = [line for line in err.splitlines() if "cannot be reached" in line]
    assert len(told) == 1, err
    assert re.match(
        r"note: 3 hosts cannot be reached from 2 other hosts by ssh \(h\d from h\d: Permission denied \(publickey\)\."
        r"\); the launcher reaches them itself. .*--ssh-option ForwardAgent=yes.*--ssh-fanout 0",
        told[0],
    )


def test_host_that_dies_while_it_starts_others_is_the_only_one_that_is_named(start: Start, ssh: FakeSsh) -> None:
    script = ssh.program.read_text()
    ssh.program.write_text(script.replace("export FAKE", 'case "$pair" in "h1>h2") kill -9 $PPID;; esac\nexport FAKE'))
    code, _, err = start.command(["true"], 6, *ssh.options(6)).finish(120)
    assert code == 2
    assert "1 of 6 hosts cannot take part; nothing was started" in err
    assert "h1: the connection to its agent ended (SIGKILL)" in err
    assert "cannot be reached from" not in err
    assert (ssh.calls["h2"], ssh.calls["h3"]) == ("", "")


@pytest.mark.parametrize("place", [0, 1], ids=["that starts others", "that starts no other"])
def test_host_that_nobody_reaches_is_refused_as_without_tree(start: Start, ssh: FakeSsh, place: int) -> None:
    names = [f"h{number}" for number in range(1, 7)]
    names[place] = "dead"
    code, _, err = start.command(["true"], 6, "-H", ",".join(names), *ssh.options(6)[2:]).finish(120)
    assert code == 2
    assert "1 of 6 hosts cannot take part; nothing was started" in err
    assert "dead: it does not answer" in err
    assert "cannot be reached from" not in err
    assert set(ssh.calls) == set(names) - {"dead"}


def test_lost_inner_host_is_the_first_failure_and_nothing_is_left(start: Start, ssh: FakeSsh) -> None:
    job = start(WAITS, 6, *ssh.options(6))
    for rank in range(6):
        job.told(f"pid{rank}")
    assert ssh.calls["h2"] == "h1"
    os.kill(ssh.process("h1"), signal.SIGKILL)
    code, _, err = job.finish(120)
    assert code == 1
    assert "error: host h1 was lost first, with rank 0: " in err
    assert "the connection to its agent leads through host h1, which is lost" in err


def test_silent_inner_host_is_the_first_failure(start: Start, ssh: FakeSsh) -> None:
    options = (*ssh.options(6)[:-2], "--host-timeout", "4")
    job = start(WAITS, 6, *options)
    for rank in range(6):
        job.told(f"pid{rank}")
    os.kill(ssh.process("h1"), signal.SIGSTOP)
    code, _, said = job.finish(60)
    assert code == 1
    assert "error: host h1 was lost first, with rank 0: nothing was heard from it" in said


def test_worker_behind_host_that_has_ended_its_own_has_time_to_end(start: Start, ssh: FakeSsh) -> None:
    job = start(
        """
        def leave(*_):
            tell(f"asked{rank}")
            time.sleep(1.5 if rank == 5 else 0)
            tell(f"left{rank}")
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
        tell(f"pid{rank}")
        time.sleep(1000)
        """,
        6,
        *ssh.options(6),
    )
    for rank in range(6):
        job.told(f"pid{rank}")
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish(60)
    assert code == 130, err
    for rank in range(6):
        assert job.told(f"left{rank}") == ""
    assert ssh.calls["h6"] != ""


def test_interrupt_while_hosts_are_reached_leaves_nothing(start: Start, ssh: FakeSsh) -> None:
    slow = ssh.program.read_text().replace("export FAKE", "case $before in h6) exec sleep 1000;; esac\nexport FAKE")
    ssh.program.write_text(slow)
    job = start.command(["true"], 6, *ssh.options(6))
    until(lambda: len(ssh.calls) == 6, "all hosts are being reached", 60)
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish(60)
    assert code == 130, err


def test_files_are_sent_along_the_tree(start: Start, ssh: FakeSsh, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    noise = os.urandom(9_000_000)
    (project / "noise.bin").write_bytes(noise)
    (project / "sum.py").write_text(
        "import hashlib, os\n"
        "print(os.environ['FAKE_HOST'], hashlib.sha256(open('noise.bin', 'rb').read()).hexdigest(), os.getcwd())\n"
    )
    options = [*ssh.options(7), "--ship", str(project)]
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", "7", *options, sys.executable, "sum.py"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sorted(line[0].partition(":")[2] for line in lines) == [f"h{number}" for number in range(1, 8)]
    assert {line[1] for line in lines} == {hashlib.sha256(noise).hexdigest()}
    assert not any(line[2] == str(project) for line in lines)


def test_elastic_job_is_flat(start: Start, ssh: FakeSsh) -> None:
    code, _, err = start.command(["true"], 3, "--min-np", "3", *ssh.options(3, 1)).finish()
    assert code == 0, err
    assert set(ssh.calls.values()) == {""}


def test_ssh_to_a_silent_host_ends_with_a_killed_launcher(start: Start, ssh: FakeSsh) -> None:
    job = start(WAITS, 1, *ssh.options(1))
    job.told("pid0")
    waits = ssh.process("h1")
    os.kill(waits, signal.SIGSTOP)  # It does not notice the end of its input, like ssh to a host that is cut off.
    job.process.kill()
    until(lambda: waits not in job.left(), "it has ended", 20)
