"""Agents that start agents over ssh: with a fan-out of 2, h1 starts h2 and h3, and h4 starts h5."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER, Job, alive, put, start, told
from tests.hosts.launches import MEET, NOTICED_SECONDS, TRAIN, lines
from tests.hosts.ssh import CONFIG
from waiting import until

Hosts = Callable[..., Bed]

ENDS_SLOWLY = """
def leave(*_):
    time.sleep(1)
    tell(f"left{rank}")
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
tell(f"pid{rank}")
time.sleep(600)
"""
TREE = "--ssh-fanout 2 -H h1:1,h2:1,h3:1,h4:1,h5:1 python train.py"


def reached_from(bed: Bed) -> dict[str, list[str]]:
    """Return the hosts that each host has reached by ssh, without those that have reached none."""
    found = {}
    for host in alive(bed):
        commands = [each.command for each in bed.processes(host) if each.command.startswith("ssh ")]
        targets = [other.name for other in bed.hosts for command in commands if f" {other.name} " in command]
        if targets:
            found[host.name] = sorted(targets)
    return found


def training(bed: Bed, script: str = TRAIN, *, patient: bool = True) -> Job:
    put(bed.hosts, script)
    job = start(bed, TREE, patient=patient)
    for rank, host in enumerate(bed.hosts):
        told(host, f"pid{rank}")
    return job


def test_workers_on_tree_of_hosts_get_the_same_sum(hosts: Hosts) -> None:
    bed = hosts(5)
    put(bed.hosts, MEET)
    code, out, err = start(bed, TREE).finish()
    assert (code, lines(out)) == (0, [f"{rank} 5 0 {rank} h{rank + 1} 10.0" for rank in range(5)]), err


def test_workers_on_tree_of_hosts_have_time_to_end(hosts: Hosts) -> None:
    """The configuration of the hosts shares connections by processes in the background, which an agent would end."""
    bed = hosts(5)
    for host in bed.hosts:
        with open(host.path(CONFIG), "a") as file:
            file.write("ControlMaster auto\nControlPath /root/.ssh/%C\nControlPersist 60\n")
    job = training(bed, ENDS_SLOWLY)
    assert reached_from(bed) == {"desk": ["h1", "h4"], "h1": ["h2", "h3"], "h4": ["h5"]}
    job.signal(signal.SIGINT)
    assert job.finish()[0] == 130
    for rank, host in enumerate(bed.hosts):
        assert host.path(f"{FOLDER}/left{rank}").exists()


def test_host_that_other_host_does_not_know_is_reached_from_launcher(hosts: Hosts) -> None:
    bed = hosts(5)
    bed.hosts[0].path("/root/.ssh/known_hosts").write_text("")
    job = training(bed)
    assert reached_from(bed) == {"desk": ["h1", "h2", "h3", "h4"], "h4": ["h5"]}
    job.signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 130
    (told_once,) = [line for line in err.splitlines() if "cannot be reached" in line]
    assert told_once.startswith("note: 2 hosts cannot be reached from h1 by ssh (h")
    assert "Host key verification failed" in told_once


def test_inner_host_that_loses_its_power_is_lost_first(hosts: Hosts) -> None:
    bed = hosts(5)
    job = training(bed, patient=False)
    bed.die(bed.hosts[0])
    code, _, err = job.finish(NOTICED_SECONDS + 20)
    assert code == 1
    assert "error: host h1 was lost first, with rank 0: nothing was heard from it for" in err, err


@pytest.mark.parametrize("place", [0, 1], ids=["that starts others", "that starts no other"])
def test_kill_minus_nine_of_an_agent_leaves_nothing_anywhere(hosts: Hosts, place: int) -> None:
    bed = hosts(5)
    job = training(bed)
    (agent,) = [
        each.pid
        for each in bed.processes(bed.hosts[place])
        if "farandole.control.agent" in each.command and "sh -c" not in each.command and "ssh " not in each.command
    ]
    assert bed.hosts[place].run(["kill", "-9", str(agent)]).returncode == 0
    code, _, err = job.finish()
    assert code == 1
    assert f"error: host h{place + 1} was lost first" in err, err


def test_ctrl_z_loses_no_worker_on_tree_of_hosts(hosts: Hosts) -> None:
    bed = hosts(5)
    job = training(bed, patient=False)
    job.signal(signal.SIGTSTP)
    until(lambda: Path(f"/proc/{job.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it stops")
    time.sleep(3)
    assert all(len(bed.processes(host)) >= 2 for host in bed.hosts)
    job.signal(signal.SIGCONT)
    time.sleep(1)
    job.signal(signal.SIGINT)
    code, _, err = job.finish()
    assert code == 130, err


def test_kill_minus_nine_of_launcher_leaves_nothing_on_tree_of_hosts(hosts: Hosts) -> None:
    bed = hosts(5)
    job = training(bed)
    job.signal(signal.SIGKILL)
    job.process.communicate(timeout=20)
    for host in alive(bed):
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", NOTICED_SECONDS)
