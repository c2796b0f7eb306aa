"""The launcher's end of an agent: starts it, asks it questions, and notices when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.errors import BadMessage, WireError
from farandole.base.wire.frames import LARGEST_FRAME, Codec
from farandole.control.agent.branch_messages import FromBranch
from farandole.control.agent.file_messages import FromFiles
from farandole.control.agent.protocol import (
    GREETING,
    AllEnded,
    Answer,
    Beat,
    End,
    FromAgent,
    Ready,
    RelayClosed,
    RelayCredit,
    Relayed,
    RelayOpened,
    Resumed,
    ToAgent,
)
from farandole.control.launcher.agents.agent_link import AgentLink
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.agent_process import AgentProcess
from farandole.control.launcher.agents.branches import Branches
from farandole.control.launcher.agents.relayed_links import LatestEnd, RelayedLinks
from farandole.control.launcher.agents.send_gate import SendGate
from farandole.control.launcher.failure.record import signal_name
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

# Seconds within which a host must accept the connection, and its agent must start and answer.
READY_SECONDS = 30.0
BEAT_SECONDS = 0.5
# The same for agents that confirm each heartbeat.
CONFIRMED_SECONDS = 0.25
# Number of heartbeats whose confirmation may be on its way.
_UNCONFIRMED = 100
# Seconds within which a launcher that announced a pause is stopped.
PAUSE_SECONDS = 1.0
# Seconds that an agent without an order to end has to end its workers before it is killed.
CLOSE_SECONDS = 0.5
# Seconds that a process whose pipe is closed, or the far end of a connection, may take to end.
EXIT_SECONDS = 5.0
_LOOK_SECONDS = 0.1


class AgentClient:
    """The launcher's end of one agent.

    Attributes:
        host: the agent's host.
        local: whether that is this machine.
        facts: the agent's report about its host; set by `ready`.
        clock_ahead: seconds by which its clock is ahead of this machine's; the error is the transfer time of a message.
        patience: seconds that it waits for another launcher after it has lost this one; None: it ends its workers at
            once.
        branches: the links to agents of other hosts that lead through this one.
        confirmed: called when it has confirmed a heartbeat, with the time at which that was sent; None: it need not
            confirm any.

    Args:
        gate: the gate that delays messages to the agent until they are recorded; None: no delay.
    """

    def __init__(
        self, host: Host, local: bool, process: AgentLink, patience: float | None = None, gate: SendGate | None = None
    ) -> None:
        self.host = host
        self.local = local
        self.facts: Ready | None = None
        self.clock_ahead = 0.0
        self.patience = patience
        self.confirmed: Callable[[float], None] | None = None
        self._gate = gate or SendGate()
        self._process = process
        self._channel = AsyncChannel(process.output, process.input, LARGEST_FRAME)
        self._codec: Codec[FromAgent] = Codec(FromAgent)
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = loop.create_future()
        self._ended: asyncio.Future[AllEnded] = loop.create_future()
        self._resumed: asyncio.Future[Resumed] = loop.create_future()
        for future in (self._ready, self._ended, self._resumed):
            future.add_done_callback(_retrieve)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        # The agent may still answer questions of the previous launcher.
        self._asked = secrets.randbits(40)
        self._untaken: list[FromAgent] = []
        """Messages that arrived before `listen` was called: an agent that is taken over sends some at once."""
        self._take: Callable[[FromAgent], None] = self._untaken.append
        self._take_files: Callable[[FromFiles], None] = lambda message: None
        self._relayed: RelayedLinks | None = None
        self._heard_at = time.monotonic()
        self.branches = Branches(host.label, self.send, lambda: self._heard_at)
        self._beats: dict[int, float] = {}
        """When heartbeats were sent that it has not confirmed yet, by number."""
        self._beat_number = 0
        self._paused_until = 0.0
        self._lost: AgentLost | None = None
        self._closed = False
        self._reading = loop.create_task(self._read())

    @classmethod
    async def start(cls, host: Host, local: bool, ssh: SshOptions, socket_names: Sequence[str] = ()) -> AgentClient:
        """Start an agent, or take one over, as `AgentProcess.start` does.

        Raises:
            AgentLost: ssh is missing on this machine.
        """
        return cls(host, local, await AgentProcess.start(host, local, ssh, socket_names))

    # --- talking ----------------------------------------------------------------------------------------------------

    def send(self, message: ToAgent) -> None:
        """Send a message through the gate; no-op if the agent is lost, or has ended."""
        if self._lost is None and not self._ended.done():
            payload = self._codec.encode(message)
            self._gate.send(lambda: self._post(payload))

    def _post(self, payload: bytes) -> None:
        if self._lost is None and not self._ended.done():
            self._channel.post(payload)

    async def ask(self, make: Callable[[int], ToAgent], seconds: float) -> Answer:
        """Send the question that `make` creates from a number, and return its answer.

        Raises:
            AgentLost: the agent is gone, or has not answered within `seconds`.
        """
        if self._lost is not None:
            raise self._lost
        self._asked += 1
        number = self._asked
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.send(make(number))
        try:
            return await asyncio.wait_for(answer, seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise AgentLost(f"its agent did not answer within {seconds:g} s") from None
        finally:
            del self._answers[number]

    async def ready(self) -> Ready:
        """Wait for the agent's report about its host.

        Raises:
            AgentLost: it did not start; the text is the last message about it.
        """
        try:
            self.facts = await asyncio.wait_for(asyncio.shield(self._ready), READY_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            raise AgentLost(f"connection timed out: no agent after {READY_SECONDS:g} s") from None
        return self.facts

    async def resumed(self) -> Resumed:
        """Wait for the report of an agent that is taken over about its state.

        Raises:
            AgentLost: it no longer exists.
        """
        return await asyncio.shield(self._resumed)

    def relay_to(self, roster: str, latest: LatestEnd) -> None:
        """Relay connections from the workers of this agent's host to the roster.

        Args:
            roster: host:port of the roster.
            latest: shared by all agents of the job.
        """
        self._relayed = RelayedLinks(roster, self.send, latest)

    def on_file_messages(self, take: Callable[[FromFiles], None]) -> None:
        """Pass messages about files to `take`."""
        self._take_files = take

    async def listen(self, take: Callable[[FromAgent], None]) -> tuple[int, ...]:
        """Pass messages about workers to `take` until all have ended; return the processes that could not be ended.

        Raises:
            AgentLost: the agent is gone, and nothing more is known about its workers.
        """
        self._take = take
        for message in self._untaken:
            take(message)
        self._untaken.clear()
        survivors = (await self._ended).survivors
        # Waiting for its exit ensures that none of our processes is left. An ssh whose network breaks at this moment
        # would wait for ever.
        if await self._exit_code() is None:
            self.kill()
        return survivors

    @property
    def heard_at(self) -> float:
        """When the last message from it arrived, in seconds on the monotonic clock."""
        return self._heard_at

    def heard(self) -> None:
        """Count work that the launcher itself did for this agent's workers as a sign of life."""
        self._heard_at = time.monotonic()

    # --- losing ----------------------------------------------------------------------------------------------------

    async def watch(self, timeout: float, entitled_for: Callable[[], float] = lambda: math.inf) -> None:
        """Exchange heartbeats until the agent is lost. For agents on other hosts.

        Args:
            timeout: seconds of silence after which it counts as lost.
            entitled_for: returns for how many seconds the launcher has been entitled to give up silent hosts.
        """
        beat_at = 0.0
        looked_at = self._heard_at = time.monotonic()
        while self._lost is None and not self._ended.done():
            now = time.monotonic()
            if now - looked_at > BEAT_SECONDS:
                self._heard_at = now  # The launcher itself did not listen: it was stopped, or got no processor time.
            looked_at = now
            if now >= max(beat_at, self._paused_until):
                self._beat(timeout, now)
                beat_at = now + (BEAT_SECONDS if self.confirmed is None else CONFIRMED_SECONDS)
            silence = self._process.known_open() - self._heard_at
            if min(silence, entitled_for()) > timeout:
                why = f"nothing was heard from it for {silence:.1f} s; it has died, or the network to it is cut"
                self.lose(why, self._heard_at)
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def is_lost(self) -> bool:
        """Whether the agent was lost before it has ended as ordered."""
        return self._lost is not None

    def _beat(self, timeout: float, now: float) -> None:
        number = 0
        if self.confirmed is not None:
            self._beat_number += 1
            number = self._beat_number
            self._beats[number] = now
            self._beats.pop(number - _UNCONFIRMED, None)
        self.send(Beat(timeout if self.patience is None else math.inf, number))

    def _confirm(self, number: int) -> None:
        sent_at = self._beats.pop(number, None)
        if sent_at is not None and self.confirmed is not None:
            self.confirmed(sent_at)

    async def lost(self) -> AgentLost:
        """Wait until the agent can no longer be used, and return why."""
        try:
            await asyncio.shield(self._ended)
        except AgentLost as error:
            return error
        return AgentLost("it has ended")

    def pause(self) -> None:
        """Inform an agent on another host that the launcher is about to be suspended by a signal, but is alive."""
        self.send(Beat(math.inf))
        # Nothing else may be sent before the launcher is stopped; by the time it continues, this has expired.
        self._paused_until = time.monotonic() + PAUSE_SECONDS

    def lose(self, why: str, silent_since: float | None = None) -> None:
        """Consider the agent lost; the kernel, or the agent's own watchdog, then ends its workers.

        Args:
            why: how the loss was noticed.
            silent_since: when the last message arrived, if the agent is lost because of its silence.
        """
        if self._lost is None and not self._ended.done():
            # It may still receive messages, although none arrive from it, and must not wait for another launcher. A
            # successor need not know this: it will find that the agent does not exist.
            self._post(self._codec.encode(End(0)))
            self._lost = AgentLost(why, silent_since)
            waiting: list[asyncio.Future[Any]] = [self._ready, self._resumed, self._ended, *self._answers.values()]
            for future in waiting:
                if not future.done():
                    future.set_exception(self._lost)
            self.branches.lost(self._lost)
        if self.local:
            self.kill()
        else:
            self._channel.close()  # A killed ssh does not pass on the rest.

    def kill(self) -> None:
        """Kill the agent, or the ssh that leads to it."""
        self._process.kill()

    async def close(self) -> None:
        """Kill it if it is alive, and wait until it has ended. No-op the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._ready.done() and self._lost is None and not self._ended.done():
                self.send(End(0))
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        finally:
            self.kill()
        # It ends with the process, and not earlier: the end of a pipe is noticed only by reading.
        await asyncio.wait({self._reading}, timeout=EXIT_SECONDS)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self.branches.lost(AgentLost("it has ended"))
        if self._relayed is not None:
            await self._relayed.close()
        await self._process.wait()
        await self._channel.closed()
        self._process.close()

    # --- reading ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        try:
            await self._channel.skip_to(GREETING)
            while True:
                self._hear(self._codec.decode(await self._channel.receive()))
        except BadMessage as error:
            self.lose(f"its agent does not speak the protocol: {error}")
            await self._channel.forget_the_rest()
        except WireError:
            if not self._ended.done():
                how = self._how_it_ended(await self._exit_code())
                loss = self._process.loss()
                if loss is None:
                    self.lose(how)
                else:
                    # At this time, which is later: the loss of the other agent is the first failure.
                    self.lose(str(loss), time.monotonic() if loss.silent else None)
        except Exception as error:
            # A bug in the launcher: tasks that wait for this agent must not wait for ever.
            self.lose(f"a message of its agent could not be handled: {error!r}")
            asyncio.get_running_loop().call_exception_handler({"message": "a reader failed", "exception": error})

    def _hear(self, message: FromAgent) -> None:
        if self._lost is not None:
            return
        self._heard_at = time.monotonic()
        if isinstance(message, Beat):
            self._confirm(message.number)
            return
        if isinstance(message, Ready):
            self.clock_ahead = message.clock - time.time()
            self._process.is_ready()
            self._ready.set_result(message)
        elif isinstance(message, Resumed):
            if self.local:
                self._process.leads_to(message.pid)
            self._resumed.set_result(message)
            self._take(message)
        elif isinstance(message, Answer):
            waiting = self._answers.get(message.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        elif isinstance(message, RelayOpened | Relayed | RelayCredit | RelayClosed):
            if self._relayed is not None:
                self._relayed.handle(message)
        elif isinstance(message, FromBranch):
            self.branches.handle(message)
        elif isinstance(message, FromFiles):
            self._take_files(message)
        elif isinstance(message, AllEnded):
            self._ended.set_result(message)
        else:
            self._take(message)

    async def _exit_code(self) -> int | None:
        """Return the exit code of an agent that sends no more messages; None: it is still running, or unknown."""
        try:
            return await asyncio.wait_for(self._process.wait(), EXIT_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            return None

    def _how_it_ended(self, code: int | None) -> str:
        said = self._process.said().strip()
        if said and not self._ready.done():
            return said
        how = "it closed the connection" if code is None else signal_name(-code) if code < 0 else f"exit code {code}"
        last = f": {said.splitlines()[-1]}" if said else ""
        if self.local:
            return f"the agent of the workers died ({how}){last}"
        return f"the connection to its agent ended ({how}){last}"


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve an exception that may have no waiter, so that asyncio does not log a warning."""
    if not future.cancelled():
        future.exception()
