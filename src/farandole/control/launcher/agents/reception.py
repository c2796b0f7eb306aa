"""Accepts hosts that dial the launcher because it cannot reach them, such as pods of Kubernetes.

The other side is `farandole.control.agent.dial`. A host is *waiting* from its authentication until the launcher needs
it, and *taken* while its agent is connected. A peer without the secret is rejected before anything else that it sends
is decoded.

Guarantees:
- A host with a living agent (one that has lost its launcher) never gets another agent: if this launcher takes the job
  over and knows the host, it is connected to the agent; otherwise the host must first end its agent and workers.
- `gone` returns when nothing is left of a lost agent and its workers: its host has reported that, or no longer exists
  (its connection has ended, and it does not dial again within a second, as it otherwise would), or the time for which
  its agent waits for a launcher is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from farandole.base.display.wording import count
from farandole.base.wire.dialing import Begin, Continue, Hello, Order
from farandole.base.wire.errors import AuthenticationFailed, ConnectionLost, WireError
from farandole.base.wire.secret_file import SecretFile
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.arrival import Arrival, handed_over, host_of, send_leave, welcome
from farandole.control.launcher.agents.dialed_agent import DialedAgent, DialedReader, lead_nowhere
from farandole.control.launcher.agents.reception_port import ReceptionPort
from farandole.control.launcher.background import Background
from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError

# Counted from the first host that finds this launcher, if it is a new one: a name server may still give others the
# previous launcher's address. As long as no host arrives, perhaps none can, and agents wait for as long as they may.
FIRST_ARRIVAL_SECONDS = 60.0
# Seconds without a host after which the user is notified.
TELL_SECONDS = 10.0
# Counted from the first host that has lost a launcher: another may notice the silence of a lost machine only after
# KEEPALIVE_SECONDS, and dial a launcher that is gone, in vain, for as long as the proof may take. A busy machine
# doubles that.
LATE_ARRIVAL_SECONDS = 20.0
# The same for a host whose workers have ended, as others know, while the others cannot continue without it. If its
# agent lives, nothing on that host keeps it from dialing, which it does twice a second.
MISSED_ARRIVAL_SECONDS = 1.0
# Seconds to wait for the hosts of a job of fixed size.
START_SECONDS = 600.0
# Seconds within which a dialer whose connection has ended dials again, unless it no longer exists.
REDIAL_SECONDS = 4.0
# Seconds after the end of an agent's wait for a launcher by which it has ended its workers.
FENCED_SECONDS = 3.0
_REST_SECONDS = 0.05


class HostsMissing(SpecError):
    """Not enough hosts have dialed in time."""


class Reception:
    """Accepts the hosts of one job.

    Args:
        ports: the ports of which the first free one is used, on all addresses; 0 is any free port.
        read_secret: returns the secret that hosts must prove to have; called each time, because a mounted file may
            change.
        outlive: seconds for which an agent that has lost its launcher waits for another one; None: it ends at once.
        start_timeout: seconds to wait for the hosts of a job of fixed size.

    Example:
        >>> reception = Reception([0], lambda: b"sixteen or more bytes")
        >>> 0 < reception.listen() < 65536
        True
        >>> reception.stop_listening()
    """

    def __init__(
        self,
        ports: Iterable[int],
        read_secret: Callable[[], bytes],
        outlive: float | None = None,
        start_timeout: float = START_SECONDS,
    ) -> None:
        self.outlive = outlive
        self._port = ReceptionPort(ports)
        self._read_secret = read_secret
        self._start_timeout = start_timeout
        self._server: asyncio.Server | None = None
        self._waiting: dict[str, Arrival] = {}
        self._beginning: list[Host] = []
        """Hosts that were ordered to start an agent, or to connect their agent, and have not answered yet."""
        self._taken: dict[str, tuple[Host, DialedAgent]] = {}
        self._told_off: dict[str, float] = {}
        """When each host was last ordered to end its agent."""
        self._offered: dict[str, float] = {}
        """When each host last reported that it has no living agent."""
        self._expecting = True
        """Whether hosts may dial whose agents have lost another launcher."""
        self._first_alive: float | None = None
        """When the first host with a living agent dialed."""
        self._first_new: float | None = None
        """When the first host without an agent dialed. It says little about the others: it had no launcher to lose."""
        self._given_up = ""
        self._said: list[str] = []
        """The messages that have been logged, and need not be repeated."""
        self._say: Callable[[str], None] = lambda text: None
        self._welcoming = Background()

    @classmethod
    def at(cls, place: str, outlive: float) -> Reception:
        """Return the reception for `PORT:FILE`, with the secret from the file.

        Raises:
            SpecError: the text is not valid, or the file cannot be used.
        """
        port, _, path = place.partition(":")
        if not port.isdecimal() or not 0 < int(port) < 1 << 16 or not path:
            raise SpecError(
                f"dial:{place} is not a port and a file", "write dial:PORT:FILE, where FILE contains the secret"
            )
        secret = SecretFile(Path(path))
        try:
            secret.read()
        except OSError as error:
            raise SpecError(
                f"the secret of hosts that dial cannot be read: {path}: {error.strerror}", "check the path"
            ) from None
        except AuthenticationFailed as error:
            raise SpecError(str(error), "give it 16 bytes or more: openssl rand -hex 32") from None
        return cls([int(port)], secret.read, outlive)

    def listen(self) -> int:
        """Listen, and return the port. Hosts that dial are answered once the job runs. Further calls have no effect.

        Raises:
            SpecError: all ports are in use.
        """
        port: int = self._port.listen().getsockname()[1]
        return port

    def stop_listening(self) -> None:
        """Stop listening, because the job will not be started."""
        self._port.close()

    async def start(self, say: Callable[[str], None], expecting: bool) -> None:
        """Start listening.

        Args:
            say: prints a message about hosts that were rejected.
            expecting: whether hosts may dial whose agents have lost another launcher.

        Raises:
            SpecError: all ports are in use.
        """
        self._say, self._expecting = say, expecting
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = DialedReader()
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._accept(reader, writer))

        self._server = await loop.create_server(protocol, sock=self._port.listen())

    async def close(self) -> None:
        """Accept no more hosts; waiting hosts are told to look for another launcher."""
        if self._server is not None:
            self._server.close()
        self.stop_listening()
        await self._welcoming.end()
        for arrival in self._waiting.values():
            arrival.writer.close()
        self._waiting.clear()

    def hosts(self) -> tuple[Host, ...]:
        """Return the waiting hosts and the connected ones."""
        self._tidy()
        found = {name: host for name, (host, _) in self._taken.items()} | {host.name: host for host in self._beginning}
        for name, arrival in self._waiting.items():
            if not arrival.hello.lives:
                found.setdefault(name, host_of(arrival.hello))
        return tuple(found.values())

    async def gather(self, slots: int) -> tuple[Host, ...]:
        """Wait for the hosts of a job of fixed size, and return them in the natural order of their names.

        Args:
            slots: the total number of slots that they must have.

        Raises:
            HostsMissing: they have not dialed in time, or will not dial.
        """
        began = told = time.monotonic()
        while (have := sum(host.slots or 0 for host in self.hosts())) < slots:
            now = time.monotonic()
            if self._given_up:
                raise HostsMissing(self._given_up)
            if now - began > self._start_timeout:
                raise HostsMissing(
                    f"only {have} of {count(slots, 'slot')} had dialed this launcher after {self._start_timeout:g} s",
                    f"are the others still being started, and do they reach port {self.listen()} of this machine?"
                    + "".join(f"\n  {each}" for each in self._said),
                )
            if now - told > TELL_SECONDS:
                told = math.inf
                self._say(f"note: {have} of {count(slots, 'slot')} have dialed; waiting for the others")
            await asyncio.sleep(_REST_SECONDS)
        return tuple(sorted(self.hosts(), key=lambda host: _natural(host.name)))

    def give_up(self, why: str) -> None:
        """Make `gather` fail with this reason, because the hosts will not dial. May be called in any thread."""
        self._given_up = why

    # --- arrivals -----------------------------------------------------------------------------------------------

    def _accept(self, reader: DialedReader, writer: asyncio.StreamWriter) -> None:
        self._welcoming.spawn(self._welcome(reader, writer))

    async def _welcome(self, reader: DialedReader, writer: asyncio.StreamWriter) -> None:
        try:
            arrival = await welcome(reader, writer, self._read_secret())
        except (WireError, TimeoutError, asyncio.TimeoutError) as error:
            if isinstance(error, ConnectionLost):
                writer.close()  # It only checked that this port is open, as readiness probes do.
                return
            peer = (writer.get_extra_info("peername") or ("somebody",))[0]
            self._say_once(f"warning: a host at {peer} that dialed was rejected: {error or 'it sent nothing'}")
            writer.close()
            return
        await self._arrived(arrival)

    def _say_once(self, text: str) -> None:
        if text not in self._said:  # Hosts dial twice a second.
            self._said.append(text)
            self._say(text)

    async def _arrived(self, arrival: Arrival) -> None:
        name = arrival.hello.name
        if self._is_second(arrival.hello):
            await send_leave(arrival, f"{name} has already dialed, and is alive")
            return
        if arrival.hello.lives:
            self._first_alive = self._first_alive or time.monotonic()
        else:
            self._first_new = self._first_new or time.monotonic()
            self._offered[name] = time.monotonic()
        if (before := self._waiting.pop(name, None)) is not None:
            before.writer.close()
        if name in self._taken and not self._taken[name][1].output.at_eof():
            # It has noticed the end of the connection before us.
            self._taken[name][1].kill()
        self._waiting[name] = arrival
        if arrival.hello.lives and not self._expecting:
            await self._send_away(name, "it was considered lost when its connection had ended")

    async def _send_away(self, name: str, why: str) -> None:
        self._told_off[name] = time.monotonic()
        await send_leave(self._waiting.pop(name), why)

    def _is_second(self, hello: Hello) -> bool:
        """Return whether this is another attempt of a task whose earlier attempt has dialed, and seems to be alive.

        For hosts that no other program restarts, such as pods, the answer is False: the earlier one is gone.
        """
        if hello.own is None:
            return False
        self._tidy()
        if hello.name in self._waiting:
            return self._waiting[hello.name].hello.instance != hello.instance
        return hello.name in self._taken and self._taken[hello.name][1].instance != hello.instance

    def _tidy(self) -> None:
        for name in [name for name, arrival in self._waiting.items() if not arrival.is_open]:
            self._waiting.pop(name).writer.close()
        for name in [name for name, (_, agent) in self._taken.items() if agent.is_over]:
            del self._taken[name]

    # --- connecting ---------------------------------------------------------------------------------------------

    async def begin(self, host: Host) -> DialedAgent:
        """Start an agent on a waiting host.

        Raises:
            AgentLost: the host no longer waits.
        """
        self._tidy()
        arrival = self._waiting.get(host.name)
        if arrival is None or arrival.hello.lives:
            raise AgentLost("it has not dialed again since its connection ended")
        return await self._bridge(host, arrival, Begin())

    async def follow(
        self, host: Host, sockets: Sequence[str], holds_up: Callable[[], bool] = lambda: False
    ) -> DialedAgent:
        """Return the link to the agent of a host that has lost its launcher; a closed link if the agent is gone.

        Args:
            host: the host to wait for.
            sockets: the sockets on which its agent may be listening.
            holds_up: returns whether waiting for it only delays the others, as explained at `MISSED_ARRIVAL_SECONDS`.
        """
        arrival = await self._awaited(host.name, holds_up)
        if arrival is not None and arrival.hello.lives:
            with contextlib.suppress(AgentLost):
                return await self._bridge(host, arrival, Continue(tuple(sockets)))
        return await lead_nowhere()

    async def settle(self) -> None:
        """Stop expecting agents that have lost another launcher; order unknown ones to end."""
        self._expecting = False
        for name in [name for name, arrival in self._waiting.items() if arrival.hello.lives]:
            await self._send_away(name, "the launcher that has taken the job over does not know it")

    async def _awaited(self, name: str, holds_up: Callable[[], bool]) -> Arrival | None:
        began = time.monotonic()
        while name not in self._waiting:
            if time.monotonic() > self._end_of_wait(began, holds_up()):
                return None
            self._report_wait(began)
            await asyncio.sleep(_REST_SECONDS)
        return self._waiting[name]

    def _end_of_wait(self, began: float, holds_up: bool) -> float:
        """Return the time until which to wait for a host that has lost its launcher."""
        if self._first_alive is not None:
            return self._first_alive + (MISSED_ARRIVAL_SECONDS if holds_up else LATE_ARRIVAL_SECONDS)
        if self._first_new is not None:
            return max(began, self._first_new) + FIRST_ARRIVAL_SECONDS
        return began + (self.outlive or 0.0) + FENCED_SECONDS

    def _report_wait(self, began: float) -> None:
        if self._first_alive is not None or time.monotonic() - began < TELL_SECONDS:
            return
        self._say_once(
            "note: no host of the job has dialed yet; hosts that are alive keep training and look for this launcher "
            f"for up to {self.outlive or 0:g} s"
        )

    async def _bridge(self, host: Host, arrival: Arrival, order: Order) -> DialedAgent:
        del self._waiting[host.name]
        self._beginning.append(host)
        try:
            agent = await handed_over(arrival, order)
        except BaseException:
            arrival.writer.close()  # Otherwise the host would wait for a launcher that does not expect it any more.
            raise
        finally:
            self._beginning.remove(host)
        self._taken[host.name] = host, agent
        return agent

    async def gone(self, name: str, silent: bool, since: float, alone: float) -> None:
        """Wait until nothing is left of a lost agent and its workers, as far as that can be known.

        Args:
            name: the name of its host.
            silent: whether it fell silent; otherwise its connection ended.
            since: when that happened, on the monotonic clock.
            alone: seconds after which an agent that does not wait for another launcher ends its workers.
        """
        may_live = (alone if self.outlive is None else self.outlive) + FENCED_SECONDS
        while time.monotonic() - since < may_live:
            if self._offered.get(name, 0.0) > since:
                return  # The host has reported that it has no living agent.
            told_off = self._told_off.get(name, 0.0) > since
            if not silent and not told_off and time.monotonic() - since > REDIAL_SECONDS:
                return
            await asyncio.sleep(_REST_SECONDS)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key with which `h10` comes after `h9`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
