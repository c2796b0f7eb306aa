"""Hosts that join a running training and are misconfigured, or have a slow link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.hosts.bed import Bed
from tests.hosts.elastic_jobs import END_SECONDS, Training
from tests.hosts.host import Host
from tests.hosts.jobs import FOLDER
from waiting import until

import farandole
from farandole.base import installed

Hosts = Callable[..., Bed]

# Appended on one host to the module that knows the version.
ANOTHER_VERSION = """
own_version = lambda: "0.1"
with open("/root/agents", "a") as file:
    file.write("begun\\n")
"""


DISCOVERY = """\
#!/bin/sh
cat hosts
echo asked >> asked
"""


class Discovery:
    """The discovery script on the desk, which is run repeatedly."""

    def __init__(self, bed: Bed, *lines: str) -> None:
        self._folder = bed.desk.path(FOLDER)
        self._folder.mkdir(exist_ok=True)
        script = self._folder / "discovery"
        script.write_text(DISCOVERY)
        script.chmod(0o755)
        self.says(*lines)

    def says(self, *lines: str) -> None:
        """Change the script's answer."""
        new = self._folder / "hosts.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self._folder / "hosts")

    def await_heard(self) -> None:
        """Wait until its last answer has been read."""
        # A run that has begun before may have read another list, and an answer is taken before the next question.
        goal = self._questions() + 3
        until(lambda: self._questions() >= goal, "the script has been asked again and again", END_SECONDS)

    def _questions(self) -> int:
        asked = self._folder / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0


def install_another_version(bed: Bed, host: Host) -> Path:
    """Install another version of farandole on a host, and return the file in which its agents record their start."""
    package = os.path.dirname(farandole.__file__)
    bed.make_private(host, package)
    with open(host.path(installed.__file__), "a") as file:
        file.write(ANOTHER_VERSION)
    return host.path("/root/agents")


def install_the_same_version(host: Host) -> None:
    """Remove the other version."""
    module = host.path(installed.__file__)
    module.write_text(module.read_text().removesuffix(ANOTHER_VERSION))


def test_a_host_with_another_version_is_left_out_until_it_comes_back(hosts: Hosts) -> None:
    bed = hosts(2)
    agents = install_another_version(bed, bed.hosts[1])
    discovery = Discovery(bed, "h1:2")
    job = Training(bed, "-np", "2", "--min-np", "1", "--host-discovery-script", "./discovery")
    job.await_steps(5, size=2)
    discovery.says("h1:2", "h2:1")
    version = farandole.__version__.replace("+", r"\+")
    job.says(
        rf"warning: host h2 is left out: it has farandole 0\.1, but this machine has {version} \(hint: install the "
    )
    discovery.says("h2:1", "h1:2")
    discovery.await_heard()
    job.await_steps(5, size=2)
    assert job.generation == 1
    assert agents.read_text() == "begun\n", "it is not tried again as long as it is in the list"
    assert job.said.count("left out") == 1
    discovery.says("h1:2")
    discovery.await_heard()
    install_the_same_version(bed.hosts[1])
    discovery.says("h1:2", "h2:1")
    job.says(r"worker \d on h2 joins as rank 2; 3 workers go on as generation 2")
    job.await_steps(5, size=3)
    job.finish()


def test_a_newcomer_behind_a_slow_link_gets_its_state(hosts: Hosts) -> None:
    """The link is saturated for seven seconds, and a worker or host may be silent for three: none counts as lost.

    A busy machine may silence a worker for the default of one second, but not for as long as this.
    """
    bed = hosts(2)
    bed.shape("20mbit", host=bed.hosts[1])
    discovery = Discovery(bed, "h1:2")
    patience = ("--host-timeout", "3", "-x", "FARANDOLE_FAILURE_DEADLINE=3")
    words = ("-np", "2", "--min-np", "1", "--host-discovery-script", "./discovery", *patience)
    job = Training(bed, *words, script=["16"], patient=False)
    job.await_steps(5, size=2)
    discovery.says("h1:2", "h2:1")
    job.says(r"worker 2 on h2 joins as rank 2; 3 workers go on as generation 2")
    job.await_steps(5, size=3)
    assert "lost" not in job.said and job.generation == 2
    job.finish()


def test_newcomer_is_sent_the_code_although_workers_have_changed_files_beside_it(hosts: Hosts) -> None:
    bed = hosts(1)
    folder = bed.desk.path(FOLDER)
    (folder / "run" / "step-1").mkdir(parents=True)
    (folder / "run" / "step-1" / "state").write_text("of an earlier run")
    (folder / ".gitignore").write_text("said\nhosts\ndiscovery\nasked\n")
    discovery = Discovery(bed, "localhost:1")
    options = ("-np", "1", "--min-np", "1", "--host-discovery-script", "./discovery", "--no-preflight")
    job = Training(bed, *options, "--ship", ".", "--checkpoint-dir", "run")
    job.says("1 worker begins")
    (folder / "run" / "step-1" / "state").unlink()  # As a worker here does with a checkpoint that is not kept.
    discovery.says("localhost:1", "h1:1")
    job.says("2 workers go on as generation")
    (folder / "stop").touch()
    assert job.process.wait(END_SECONDS) == 0, job.said
    job.is_gone()
