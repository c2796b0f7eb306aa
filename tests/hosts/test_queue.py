"""A queue on several hosts: jobs run there, and hosts die."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.hosts.bed import Bed
from waiting import until

# A host that dies is asked twice, 10 s apart.
LONG = 90.0
pytestmark = pytest.mark.timeout(3 * LONG)

VARIABLES = "FARANDOLE_QUEUE=/root/queue FARANDOLE_FAILURE_DEADLINE=20"


def ask(bed: Bed, words: str) -> str:
    done = bed.desk.run(f"{VARIABLES} {sys.executable} -m farandole {words}")
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def status(bed: Bed, name: str) -> dict[str, Any]:
    return dict(json.loads(ask(bed, f"status {name} --json")))


def test_a_host_that_dies_costs_a_job_one_more_attempt(hosts: Callable[..., Bed]) -> None:
    bed = hosts(3)
    ask(bed, "queue start --hosts h1:1,h2:1,h3:1 --policy fcfs+strict+spread")
    ask(bed, "submit --detach --name wide -np 2 -- sh -c 'echo on $HOSTNAME; sleep 12'")
    ask(bed, "submit --detach --name fails -np 1 -- sh -c 'exit 3'")
    until(lambda: status(bed, "fails")["state"] == "Failed", lambda: f"it has failed: {status(bed, 'fails')}", LONG)
    assert status(bed, "fails")["exitCode"] == 3, "its host answers: it was the job's own fault"
    until(lambda: status(bed, "wide")["state"] == "Running", lambda: f"it runs: {status(bed, 'wide')}", LONG)
    had = status(bed, "wide")["hosts"]
    assert len(had) == 2
    victim = next(host for host in bed.hosts if f"{host.name}:1" in had)
    bed.die(victim)
    until(lambda: status(bed, "wide")["state"] == "Succeeded", lambda: f"it has ended: {status(bed, 'wide')}", LONG)
    told = status(bed, "wide")
    assert told["restarts"] == 1
    assert any(f"host {victim.name} was lost; it begins again" in event["text"] for event in told["events"]), told
    assert f"{victim.name}" in ask(bed, "queue status") and "does not answer" in ask(bed, "queue status")
    ask(bed, "queue stop")
