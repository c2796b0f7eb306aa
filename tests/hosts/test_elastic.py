"""Elastic training on several hosts, while workers, agents, launchers, hosts and the wires between them fail."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.hosts.bed import Bed
from tests.hosts.elastic_jobs import END_SECONDS, Training
from tests.hosts.host import Host
from tests.hosts.jobs import FOLDER
from waiting import until

Hosts = Callable[..., Bed]


def training(bed: Bed, *options: str, slots: int = 2, patient: bool = True) -> Training:
    """Return a training with two (or `slots`) workers on each host, which continues with the remaining ones."""
    places = ",".join(f"{host.name}:{slots}" for host in bed.hosts)
    size = slots * len(bed.hosts)
    job = Training(bed, "-np", str(size), "--min-np", "1", "-H", places, *options, patient=patient)
    job.await_steps(5, size=size)
    return job


# Comes in a crowd to all addresses, and stays.
CROWD = """
import contextlib, socket, time
crowd = [socket.create_connection(address, 10) for address in {addresses} for _ in range(100)]
for stranger in crowd[::2]:
    with contextlib.suppress(ConnectionError):  # It may be shown out before.
        stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" * 10)
print("all are there", flush=True)
time.sleep(60)
"""


def ports_of(job: Training, host: Host, worker: int) -> list[int]:
    """Return the ports on which a worker listens for others."""
    pid = job.books.pid(worker)
    listening = host.run(["ss", "-ltnpH"]).stdout.splitlines()
    return [int(line.split()[3].rpartition(":")[2]) for line in listening if f"pid={pid}," in line]


# --- workers -------------------------------------------------------------------------------------------------------


def test_workers_are_killed_one_two_and_all_but_one(hosts: Hosts) -> None:
    bed = hosts(2)
    first, second = bed.hosts
    job = training(bed)
    job.kill(first, 0)
    job.says(r"rank 0 \(worker 0 on h1\) was killed by SIGKILL; 3 workers go on as generation \d+ \(.*s\)")
    job.await_steps(5, size=4)
    job.kill(second, 2, 3)
    job.await_steps(5, size=4)
    job.kill(second, 5, 6)
    job.kill(first, 1)
    job.await_steps(5, size=4)
    job.finish()


def test_a_stopped_worker_is_fenced(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, patient=False)
    job.kill(bed.hosts[1], 2, number=signal.SIGSTOP)
    # Where its agent has no processor to say so, the others are the first to miss it.
    job.says(r"rank 2 \(worker 2 on h2\)( was stopped|: it fell silent) .*; 3 workers go on as generation")
    job.kill(bed.hosts[1], 2, number=signal.SIGCONT)
    until(lambda: not job.lives(bed.hosts[1], 2), "it has ended", END_SECONDS)
    job.await_steps(5, size=4)
    job.finish()


# --- agents and launchers --------------------------------------------------------------------------------------------


def test_an_agent_is_killed_and_started_again(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed)
    bed.hosts[1].run(["kill", "-9", str(job.agent(bed.hosts[1]))])
    job.says(r"warning: host h2 is lost, with workers 2 and 3: ")
    job.says("2 workers go on as generation")
    job.await_steps(5, size=4)
    job.finish()


def test_the_client_is_killed_and_another_one_takes_over(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, "--job", "dance")
    job.process.kill()
    job.process.wait()
    job.await_steps(20, size=4)
    assert job.generation == 1
    job.attach("dance")
    job.kill(bed.hosts[1], 2)
    job.says("3 workers go on as generation 2")
    job.await_steps(5, size=4)
    job.finish()


def daemons(bed: Bed) -> list[int]:
    """Return the watchdog and the daemon of the only job."""
    found = [each.pid for each in bed.processes(bed.desk) if "farandole.control.launcher.daemon" in each.command]
    assert len(found) == 2
    return sorted(found)


def test_the_daemon_is_killed_and_another_one_takes_over(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed)
    for time_ in (1, 2):
        bed.desk.run(["kill", "-9", str(daemons(bed)[1])])
        until(lambda times=time_: job.said.count("another one has taken over") == times, "another one takes over")
        job.says(r"taken over after .*s: 4 workers on 2 hosts go on")
        job.await_steps(10, size=4)
    assert job.generation == 1
    job.kill(bed.hosts[1], 2)
    job.says("3 workers go on as generation 2")
    job.await_steps(5, size=4)
    job.finish()


def test_all_of_the_launcher_is_killed_and_the_job_is_taken_back_by_name(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, "--job", "dance")
    # First the client, which would start another daemon.
    job.process.kill()
    job.process.wait()
    bed.desk.run(["kill", "-9", *map(str, daemons(bed))])
    job.attach("dance")
    job.says(r"taken over after .*s: 4 workers on 2 hosts go on")
    job.await_steps(10, size=4)
    assert job.generation == 1
    job.finish()


def test_all_of_the_launcher_is_killed_and_nobody_takes_the_job_back(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed)
    # First the client, which would start another daemon.
    job.process.kill()
    job.process.wait()
    bed.desk.run(["kill", "-9", *map(str, daemons(bed))])
    job.is_gone()


# --- hosts and wires -------------------------------------------------------------------------------------------------


def test_a_host_loses_its_power(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, patient=False)
    job.books.keep()
    bed.die(bed.hosts[1])
    job.says(r"warning: host h2 is lost, with workers 2 and 3: ")
    job.says("4 workers go on as generation")
    job.await_steps(5, size=4)
    job.finish()


def test_a_host_is_cut_off_and_comes_back(hosts: Hosts) -> None:
    """The host ends its workers itself; when it is reachable again, new ones join."""
    bed = hosts(3)
    job = training(bed, patient=False)
    bed.cut(bed.hosts[2])
    job.says("4 workers go on as generation")
    job.await_steps(5, size=4)
    until(lambda: not bed.processes(bed.hosts[2]), "nothing of the job is left on h3", END_SECONDS)
    bed.restore(bed.hosts[2])
    job.await_steps(5, size=6)
    assert not {4, 5} & set(job.newest_world())
    job.finish()


def test_a_link_between_two_hosts_is_cut(hosts: Hosts) -> None:
    """Both hosts reach the launcher, and h2; only one of them can continue with h2."""
    bed = hosts(3)
    job = training(bed, slots=1, patient=False)
    bed.cut_between(bed.hosts[0], bed.hosts[2])
    job.says("2 workers go on as generation")
    job.await_steps(5, size=2)
    bed.restore_between(bed.hosts[0], bed.hosts[2])
    job.await_steps(5, size=3)
    job.finish()


def test_a_link_is_cut_in_one_direction(hosts: Hosts) -> None:
    bed = hosts(3)
    job = training(bed, slots=1, patient=False)
    bed.block(bed.hosts[0], bed.hosts[1])
    job.says("2 workers go on as generation")
    job.await_steps(5, size=2)
    bed.unblock(bed.hosts[0], bed.hosts[1])
    job.await_steps(5, size=3)
    job.finish()


def test_a_slow_link_loses_no_worker(hosts: Hosts) -> None:
    bed = hosts(2)
    # Longer than the default: a busy machine alone does not silence a process for three seconds.
    job = training(bed, "--host-timeout", "3", "-x", "FARANDOLE_FAILURE_DEADLINE=3", patient=False)
    generation = job.generation
    bed.shape("1mbit", host=bed.hosts[1])
    job.await_steps(20)
    time.sleep(6)
    assert job.generation == generation
    job.finish()


def test_foreign_connections_to_workers_do_no_harm_while_worlds_change(hosts: Hosts) -> None:
    """Some send nothing, some random data; they connect while no worker accepts, and are pending when the next world is
    formed.
    """
    bed = hosts(2)
    job = training(bed, slots=1)
    addresses = [(host.address, port) for worker, host in enumerate(bed.hosts) for port in ports_of(job, host, worker)]
    assert addresses
    crowd = bed.desk.start([sys.executable, "-c", CROWD.format(addresses=addresses)], stdout=subprocess.PIPE)
    assert crowd.stdout is not None and crowd.stdout.readline() == "all are there\n"
    job.await_steps(5, size=2)
    assert job.generation == 1
    job.kill(bed.hosts[1], 1)
    job.says(r"worker 2 on h2 joins as rank 1; 2 workers go on as generation \d")
    job.await_steps(5, size=2)
    crowd.kill()
    job.finish()


# --- hosts that join and leave ---------------------------------------------------------------------------------------


def test_two_hosts_join_while_one_leaves(hosts: Hosts) -> None:
    bed = hosts(4)
    names = bed.desk.path(f"{FOLDER}/hosts")
    names.parent.mkdir()
    names.write_text("h1:1\nh2:1\n")
    job = Training(bed, "-np", "2", "--min-np", "1", "--hosts-from", "file:hosts")
    job.await_steps(5, size=2)
    new = names.with_suffix(".new")
    new.write_text("h1:1\nh3:1\nh4:1\n")
    new.replace(names)  # It is read at any moment.
    job.says(r"rank 1 \(worker 1 on h2\) .*asked to leave; ")
    job.await_steps(5, size=3)
    until(lambda: not bed.processes(bed.hosts[1]), "nothing of the job is left on h2", END_SECONDS)
    job.finish()


def test_host_with_preemption_notice_is_avoided_until_it_is_withdrawn(hosts: Hosts) -> None:
    bed = hosts(2)
    job = training(bed, "--preemption-file", "taken", "--preemption-interval", "0.5")
    notice = bed.hosts[1].path(f"{FOLDER}/taken")
    notice.touch()
    job.says(r"host h2 is about to be reclaimed \(the file taken exists\); workers 2 and 3 there leave .*; 2 other ")
    job.says(r"2 workers go on as generation")
    job.await_steps(5, size=2)
    notice.unlink()
    job.says(r"host h2 stays \(the notice was withdrawn after \d+ s\)")
    job.await_steps(5, size=4)
    job.finish()


def test_a_host_that_flaps_is_put_into_quarantine(hosts: Hosts) -> None:
    """It fails at most twenty times; the other host continues."""
    bed = hosts(2)
    job = training(bed, slots=1)
    for _ in range(20):
        flapping = max(worker for worker in job.newest_world() if worker > 0)
        job.kill(bed.hosts[1], flapping)
        until(
            lambda seen=flapping: "quarantine" in job.said or max(job.newest_world()) > seen, "it is back", END_SECONDS
        )
        if "quarantine" in job.said:
            break
    job.says(r"host h2 .* quarantine")
    job.await_steps(5, size=1)
    job.finish()
