"""Launchers that are cut off from all hosts, or from few, while witnesses are asked about it."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from tests.hosts.elastic_jobs import END_SECONDS, Training
from tests.hosts.host import Host
from tests.hosts.jobs import FOLDER, put, start, told
from tests.hosts.launches import Hosts
from tests.hosts.test_elastic import daemons
from waiting import until

# Twice as patient as usual, for busy machines.
TIMEOUT = 4.0
OPTIONS = ("--witnesses", "3", "--host-timeout", f"{TIMEOUT:g}")
# Until each agent would have ended its workers.
LONG_CUT = 2 * TIMEOUT

COUNT = """
basics.init()
step = 0
while True:
    goes_on = total(not os.path.exists("stop")) == size
    step += 1
    tell(f"step{rank}", step)
    if not goes_on:
        break
    time.sleep(0.01)
"""


def sockets(host: Host) -> set[str]:
    """Return the local addresses of a host's UDP sockets: its agent has one as a witness, and one when it has asked."""
    return {line.split()[3] for line in host.run(["ss", "-uanH"]).stdout.splitlines()}


def step_in(folder: Path, rank: int) -> int:
    return int((folder / f"step{rank}").read_text())


def test_a_job_goes_on_while_its_launcher_is_cut_off(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, COUNT)
    job = start(bed, [*OPTIONS, "--verbose", "-H", "h1:1,h2:1,h3:1", "python", "train.py"], patient=False)
    told(bed.hosts[0], "step0")
    until(lambda: all(len(sockets(host)) >= 2 for host in bed.hosts), "all have asked the witnesses", END_SECONDS)
    bed.cut(bed.desk)
    folder = bed.hosts[0].path(FOLDER)
    before = step_in(folder, 0)
    time.sleep(LONG_CUT)
    for host in bed.hosts:
        assert bed.processes(host), f"nothing of the job is left on {host.name}"
    assert step_in(folder, 0) > before + 10
    bed.restore(bed.desk)
    before = step_in(folder, 0)
    time.sleep(TIMEOUT)
    assert step_in(folder, 0) > before + 10
    for host in bed.hosts:
        host.path(f"{FOLDER}/stop").touch()
    code, _, err = job.finish()
    assert code == 0, err
    assert re.search("this machine seems to be cut off: most of the witnesses h., h. and h. are silent", err), err


def test_a_job_whose_launcher_is_cut_off_can_be_ended(hosts: Hosts) -> None:
    bed = hosts(3)
    put(bed.hosts, COUNT)
    job = start(bed, [*OPTIONS, "-H", "h1:1,h2:1,h3:1", "python", "train.py"], patient=False)
    told(bed.hosts[0], "step0")
    until(lambda: all(len(sockets(host)) >= 2 for host in bed.hosts), "all have asked the witnesses", END_SECONDS)
    bed.cut(bed.desk)
    time.sleep(LONG_CUT)
    job.signal(signal.SIGINT)
    _, err = job.process.communicate(timeout=END_SECONDS)
    assert job.process.returncode == 130, err
    bed.restore(bed.desk)
    for host in bed.hosts:
        until(lambda host=host: not bed.processes(host), f"nothing is left on {host.name}", END_SECONDS)


def test_a_host_that_is_cut_off_alone_is_lost_and_another_launcher_goes_on_with_the_witnesses(hosts: Hosts) -> None:
    bed = hosts(4)
    places = ",".join(f"{host.name}:1" for host in bed.hosts)
    deadline = ("-x", "FARANDOLE_FAILURE_DEADLINE=3")
    job = Training(bed, "-np", "4", "--min-np", "1", "-H", places, *OPTIONS, *deadline, patient=False)
    job.await_steps(5, size=4)
    bed.cut(bed.hosts[2])
    job.says("host h3 is lost, with worker 2")
    until(lambda: not bed.processes(bed.hosts[2]), "nothing of the job is left there", END_SECONDS)
    job.await_steps(5, size=3)
    before = {host: sockets(host) for host in bed.hosts if host is not bed.hosts[2]}
    bed.desk.run(["kill", "-9", str(daemons(bed)[1])])
    job.says("taken over after .*s: 3 workers on 3 hosts go on")
    until(
        lambda: sum(len(sockets(host) - old) for host, old in before.items()) >= sum(map(len, before.values())),
        "all have asked the same witnesses for the other launcher",
        END_SECONDS,
    )
    bed.cut(bed.desk)
    step = job.books.newest()["step"]
    time.sleep(LONG_CUT)
    assert job.books.newest()["step"] > step + 5, job.said
    bed.restore(bed.desk)
    job.says("most of the witnesses are heard again, after ")
    bed.restore(bed.hosts[2])
    job.await_steps(5, size=4)
    job.finish()
