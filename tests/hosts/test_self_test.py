"""`farandole test` over several hosts: it names the host with the slow cable."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.hosts.bed import Bed
from tests.hosts.jobs import start

Hosts = Callable[..., Bed]


def test_the_slow_host_is_named(hosts: Hosts) -> None:
    bed = hosts(3, bandwidth="400mbit")
    bed.shape("20mbit", host=bed.hosts[2])
    code, out, err = start(bed, "-H h1:2,h2:1,h3:1 --quick", verb="test").finish(100)
    assert code == 1, err
    lines = out.splitlines()
    assert lines[0] == "4 workers on 3 hosts (shm+tcp)"
    assert lines[2].endswith(" checks, all right")
    (problem,) = [line for line in lines if line.startswith("problem: ") and "slowly" in line]
    # On a busy machine the other hosts may be slow in one of the directions, too.
    assert re.match(r"problem: h3 (sends|receives|sends and receives) slowly: ", problem), problem
    assert lines[-1].endswith("found")


def test_hosts_that_are_alike_are_good(hosts: Hosts) -> None:
    bed = hosts(2, bandwidth="100mbit")
    code, out, err = start(bed, "-H h1:1,h2:1 --quick", verb="test").finish(100)
    assert (code, out.splitlines()[-1]) == (0, "all good"), err + out
