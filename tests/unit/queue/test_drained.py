"""Draining hosts: running jobs may end there, and no new ones start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_world import BOB, FakeDaemon, World, hosts

from farandole.control.queue.hosts import drained
from farandole.control.queue.model import Phase
from farandole.control.queue.settings import QueueSettings


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:2"), QueueSettings(policy="preempt"))
    yield daemon
    daemon.close()


def test_job_waiting_for_drained_hosts_shows_reason(daemon: FakeDaemon) -> None:
    daemon.state.set_hosts(drained(daemon.state.hosts, ["h1"]))
    daemon.submit("a", BOB)
    daemon.turns()
    assert daemon.state.status("a").reason == "waits: all hosts that answer are being drained"


def test_job_on_drained_host_is_not_preempted_for_a_job_that_cannot_start_there(daemon: FakeDaemon) -> None:
    daemon.submit("runs", BOB, workers=2, work=20, checkpoint="/c")
    daemon.turns()
    daemon.state.set_hosts(drained(daemon.state.hosts, ["h1"]))
    daemon.submit("comes", BOB, workers=2, work=20, priority=5)
    daemon.turns()
    daemon.world.pass_to(daemon.world.now + 100)
    daemon.turns()
    assert daemon.state.jobs["runs"].phase is Phase.SUCCEEDED
