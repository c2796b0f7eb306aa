"""The behaviour of an agent at the moment in which its launcher is lost."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from farandole.base.wire.address import parse_address
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.launcher_connection import LauncherConnection
from farandole.control.agent.protocol import Closed, Outlive, Relayed, RelayOpened, ToAgent
from farandole.control.agent.roster_relay import RosterRelay


class Host:
    """What an agent has beside its workers: a connection to the launcher, and a relay that workers use."""

    def __init__(self, launcher: socket.socket) -> None:
        self.loop = Loop()
        self.heard: list[str] = []
        self.launcher = LauncherConnection(self.loop, self, launcher.fileno(), launcher.fileno())
        launcher.detach()  # The connection closes it.
        self.relay = RosterRelay(self.loop, self.launcher.send)

    def carry_out(self, message: ToAgent) -> None:
        """Nothing is ordered here."""

    def wants_to_wait(self) -> bool:
        """There are workers."""
        return True

    def waits(self) -> None:
        """Do as the agent does."""
        self.relay.hang_up()
        self.heard.append("waits")

    def taken_over(self, seconds: float) -> None:
        """Let workers in again, as the agent does."""
        self.relay.serve()
        self.heard.append("taken over")

    def alone(self) -> None:
        """Do as the agent does."""
        self.relay.hang_up()
        self.heard.append("alone")

    def turn_until(self, fact: Callable[[], object]) -> None:
        """Let it work until something is true."""
        for _ in range(100):
            if fact():
                return
            self.loop.turn(0.1)
        raise AssertionError(f"it did not come true; {self.heard}")

    def close(self) -> None:
        """Leave no socket open."""
        self.launcher.give_up()
        self.relay.hang_up()
        self.relay._listener.close()


@contextmanager
def host_with_a_worker(outlive: Outlive | None) -> Iterator[tuple[Host, socket.socket, socket.socket]]:
    """Yield a host, its launcher's end, and a worker that is connected to the roster through it."""
    ours, launcher = socket.socketpair()
    ours.setblocking(False)
    host = Host(ours)
    if outlive is not None:
        host.launcher.outlive(outlive)
    with closing(launcher), socket.create_connection(parse_address(host.relay.address)) as worker:
        host.turn_until(lambda: host.relay._links)
        try:
            yield host, launcher, worker
        finally:
            host.close()


def an_hour(name: str) -> Outlive:
    return Outlive(f"test-launcher-connection-{name}", 3600.0)


def test_output_just_after_launcher_is_lost_does_not_end_agent() -> None:
    # What it says is read before it is noticed that there is nobody any more to whom it could be passed on.
    with host_with_a_worker(an_hour("speaks")) as (host, launcher, worker):
        worker.sendall(b"I have done a step")
        host.turn_until(lambda: any(link.ahead for link in host.relay._links.values()))
        launcher.close()
        worker.sendall(b"and another one")

        host.turn_until(lambda: host.heard)

        assert host.heard == ["waits"]
        assert worker.recv(1) == b"", "it is told to look for the roster again"


def test_worker_that_connects_just_after_launcher_is_lost_waits_for_the_next() -> None:
    with host_with_a_worker(an_hour("connects")) as (host, launcher, _):
        launcher.close()
        with socket.create_connection(parse_address(host.relay.address)):
            host.turn_until(lambda: host.heard)
        assert host.heard == ["waits"]


def test_owner_is_told_once_that_there_is_no_launcher() -> None:
    with host_with_a_worker(None) as (host, launcher, worker):
        launcher.close()
        worker.sendall(b"I have done a step")
        host.turn_until(lambda: host.heard)
        host.loop.turn(0.0)
        assert host.heard == ["alone"]


def test_loss_noticed_while_sending_is_reported_after_send_returns() -> None:
    """Whatever an agent says may be what shows that the launcher is gone: its own parts must not change under it."""
    with host_with_a_worker(an_hour("is-said")) as (host, launcher, _):
        launcher.close()
        for message in (RelayOpened(7), Relayed(7, b"x"), Closed(0, 1)):
            host.launcher.send(message)
        assert host.heard == []
        assert host.launcher.waits
        host.loop.turn(0.0)
        assert host.heard == ["waits"]
