"""The roster's port, while another process uses it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from farandole.control.launcher.supervise import roster_port as port
from farandole.control.launcher.supervise.roster_port import PortLost, listen_again


class Port:
    """A port that is used by another process at first."""

    def __init__(self, attempts: float) -> None:
        self.attempts = attempts
        """That fail."""
        self.said: list[str] = []
        self.wanted = True

    async def listen(self) -> None:
        self.attempts -= 1
        if self.attempts >= 0:
            raise OSError(errno.EADDRINUSE, "Address already in use")

    async def listen_again(self) -> None:
        await listen_again(self.listen, "127.0.0.1:4711", self.said.append, lambda: self.wanted)


def test_free_port_causes_no_message() -> None:
    free = Port(0)
    asyncio.run(free.listen_again())
    assert free.said == [] and free.attempts == -1


def test_used_port_is_waited_for_with_one_warning() -> None:
    taken = Port(3)
    asyncio.run(taken.listen_again())
    assert taken.attempts == -1
    assert taken.said == [
        "warning: port 4711, at which workers look for the roster, is still in use (Address already in use); "
        "waiting for it, 30 s at most"
    ]


def test_wait_for_port_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "PORT_SECONDS", 0.3)
    with pytest.raises(PortLost, match=r"port 4711, which .* could not get within 0\.3 s"):
        asyncio.run(Port(float("inf")).listen_again())


def test_wait_for_port_ends_with_job() -> None:
    taken = Port(float("inf"))

    async def run() -> None:
        waiting = asyncio.create_task(taken.listen_again())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        taken.wanted = False
        await asyncio.wait_for(waiting, 60)

    asyncio.run(run())
