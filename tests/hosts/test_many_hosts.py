"""Jobs on more than eight hosts, whose workers agree over a tree of hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.hosts.bed import Bed
from tests.hosts.elastic_jobs import Training
from tests.hosts.jobs import put, start
from tests.hosts.launches import MEET, lines

Hosts = Callable[..., Bed]

# Twenty workers start and end on a machine that may have two cores.
pytestmark = pytest.mark.timeout(300)


def places(bed: Bed, slots: int) -> str:
    return ",".join(f"{host.name}:{slots}" for host in bed.hosts)


def test_twenty_workers_on_ten_hosts_get_the_same_sum(hosts: Hosts) -> None:
    bed = hosts(10)
    put(bed.hosts, MEET)
    code, out, err = start(bed, f"-np 20 -H {places(bed, 2)} python train.py").finish(200)
    expected = sorted(f"{rank} 20 {rank % 2} {rank // 2} h{rank // 2 + 1} 190.0" for rank in range(20))
    assert (code, lines(out)) == (0, expected), err


def test_elastic_training_goes_on_when_leaders_and_hosts_of_the_tree_are_lost(hosts: Hosts) -> None:
    bed = hosts(10)
    job = Training(bed, "-np", "20", "--min-np", "1", "-H", places(bed, 2))
    job.await_steps(5, size=20)
    job.kill(bed.hosts[4], 8)  # the lowest rank of its host, to which the other one reports
    job.await_steps(5, size=20)  # another one was started in its place
    job.kill(bed.hosts[0], 0)
    job.await_steps(5, size=20)
    # Of ten hosts, two go: now there are eight, which agree without a tree.
    bed.hosts[8].run(["kill", "-9", str(job.agent(bed.hosts[8]))])
    bed.hosts[9].run(["kill", "-9", str(job.agent(bed.hosts[9]))])
    job.says(r"host h9 is lost")
    job.says(r"host h10 is lost")
    job.await_steps(5, size=16)
    job.finish()
