"""Sending a directory to hosts that share only a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER
from waiting import until

Hosts = Callable[..., Bed]

# Sends the folder `project` to h1 and h2, and checks the received files by a task there.
SHIP = """
import asyncio, sys
from farandole.control.agent.protocol import Task
from farandole.control.launcher.agents.start_agents import start_agents
from farandole.errors import SpecError
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.ship.file_list import build_manifest
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.ship.send import ship

async def main(job):
    agents, lost = await start_agents([(Host("h1"), False), (Host("h2"), False)], SshOptions())
    assert not lost, lost
    sent = []
    try:
        directories = await ship(build_manifest("project"), agents, job, lambda *each: sent.append(each))
        for agent in agents:
            command = ("sh", "-c", "cat words.txt; wc -c < noise.bin")
            answer = await agent.ask(
                lambda number: Task(number, command, {}, directories[agent.host.label], b"", 30), 30
            )
            print(agent.host.label, answer.code, answer.output.decode().split())
        print("sent", *sent[-1])
    except SpecError as error:
        sys.exit(error.message)
    finally:
        await asyncio.gather(*(agent.close() for agent in agents))

asyncio.run(main(sys.argv[1]))
"""


def lay_out(bed: Bed, size: int) -> None:
    project = bed.desk.path(FOLDER) / "project"
    project.mkdir(parents=True)
    (project / "words.txt").write_text("hello\n")
    (project / "noise.bin").write_bytes(os.urandom(size))
    (bed.desk.path(FOLDER) / "send.py").write_text(SHIP)


def test_only_changed_files_are_sent_over_ssh(hosts: Hosts) -> None:
    bed = hosts(2)
    lay_out(bed, 1_000_000)
    first = bed.desk.run([sys.executable, "send.py", "one"], folder=FOLDER)
    assert first.stdout.splitlines() == [
        "h1 0 ['hello', '1000000']",
        "h2 0 ['hello', '1000000']",
        "sent 2000012 2000012",
    ], first.stderr
    (bed.desk.path(FOLDER) / "project" / "words.txt").write_text("changed\n")
    second = bed.desk.run([sys.executable, "send.py", "two"], folder=FOLDER)
    assert second.stdout.splitlines()[-1] == "sent 16 16", second.stderr


def test_a_slow_network_is_not_taken_for_a_dead_one(hosts: Hosts) -> None:
    """Heartbeats are delayed behind the sent data, and are lost on a saturated network."""
    bed = hosts(2, bandwidth="4mbit")
    lay_out(bed, 2_000_000)
    done = bed.desk.run([sys.executable, "send.py", "one"], folder=FOLDER)
    assert done.stdout.splitlines()[-1:] == ["sent 4000012 4000012"], done.stderr


def test_a_host_that_is_cut_off_meanwhile_is_named(hosts: Hosts) -> None:
    bed = hosts(2, bandwidth="4mbit")
    lay_out(bed, 20_000_000)
    sending = bed.desk.start([sys.executable, "send.py", "one"], folder=FOLDER, stderr=subprocess.PIPE)
    partial = bed.hosts[1].path("/root/.cache/farandole/ship/partial")
    until(lambda: partial.is_dir() and any(partial.iterdir()), "h2 receives")
    bed.cut(bed.hosts[1])
    _, err = sending.communicate(timeout=60)
    assert sending.returncode == 1
    assert "the directory could not be sent: h2: nothing was heard from it" in err
