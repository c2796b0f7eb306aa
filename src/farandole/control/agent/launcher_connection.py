"""The agent's connection to its launcher: frames in both directions, heartbeats, and failover to the next launcher.

The connection is *up* while a launcher reads from it. When it ends, the launcher has died, or the network is broken. If
that launcher has allowed it (`Outlive`), the agent waits for another one; otherwise it is *alone* for good.
If a launcher that has announced heartbeats (`Beat`) falls silent, the agent waits neither for it nor for another one:
it may be alive, and rely on this agent to end its workers. If there are witnesses, the agent asks them first: while
most of them do not hear the launcher either, it waits (see `quorum`).

`send` may detect that the launcher is gone. The owner is notified only after all other work of this turn of the loop,
so that no caller finds its own connections closed when `send` returns.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.frame_stream import FrameStream, PipeEnd
from farandole.base.wire.frames import LARGEST_FRAME, Codec
from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.failover import FailoverListener, Spool, UnwrittenOutput
from farandole.control.agent.protocol import GREETING, Beat, Closed, Credit, FromAgent, Outlive, Output, ToAgent
from farandole.control.agent.quorum import ASK_SECONDS, Quorum
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessesTried

if TYPE_CHECKING:
    import socket

# Seconds between two heartbeats to a launcher that has asked for them.
_BEAT_SECONDS = 0.5
# A stopped launcher may stay stopped for longer than the longest possible timer.
_LONGEST_SILENCE = 1e6
# A launcher has been back for long enough after this many times its silence, and after this many seconds: TCP never
# waits for more than 120 s.
_RECOVERY = 1.5
_LONGEST_RECOVERY = 130.0
# The part of the permitted silence after which witnesses are asked.
_SUSPICIOUS = 0.5


class Owner(Protocol):
    """The interface of the agent for its connection."""

    def carry_out(self, message: ToAgent) -> None:
        """Carry out an order of the launcher."""

    def wants_to_wait(self) -> bool:
        """Return whether the agent waits for another launcher."""

    def waits(self) -> None:
        """Prepare for the time until another launcher connects."""

    def taken_over(self, seconds: float) -> None:
        """Report to another launcher, which has connected after this many seconds without a launcher."""

    def alone(self) -> None:
        """Handle that there is no launcher, and that no other one will be waited for."""


class LauncherConnection:
    """The connection to one launcher after another.

    Some of its fields belong to the current launcher (`_begin` resets them), the others to all launchers.

    Attributes:
        spool: output of workers from the time without a launcher, and output that the last launcher had not written.

    Args:
        loop: the event loop of the agent.
        owner: receives orders, and changes of the connection.
        control: the descriptor for reading from the launcher.
        report: the descriptor for writing to it; may be the same.
    """

    def __init__(self, loop: Loop, owner: Owner, control: int, report: int) -> None:
        self.spool = Spool()
        self._unwritten = UnwrittenOutput()
        self._loop = loop
        self._owner = owner
        self._codec: Codec[ToAgent] = Codec(ToAgent)
        self._outlive: Outlive | None = None
        self._failover: FailoverListener | None = None
        self._waits = False
        """Whether it waits for another launcher, or is about to."""
        self._ended_at = 0.0
        self._alone = False
        self._quorum: Quorum | None = None
        self._most_seconds = 0.0
        """Seconds of silence after which the witnesses' answers do not matter any more."""
        self._silent_after = math.inf
        """Seconds after which this witness says that the launcher is silent."""
        self._steady_at = 0.0
        """When this witness no longer says so, although it hears the launcher again."""
        self._begin(control, report)

    def _begin(self, control: int, report: int) -> None:
        self._control = control
        self._report = report
        self._stands = True
        self._stream = FrameStream(PipeEnd(control), PipeEnd(report), LARGEST_FRAME)
        self._stream.post_bytes(GREETING)
        self._silence: Timer | None = None
        """Runs while heartbeats of the launcher are expected."""
        self._next_beat: Timer | None = None
        self._within = 0.0
        """Seconds of silence after which the launcher is considered gone."""
        self._heard_at = time.monotonic()
        self._excused_at = 0.0
        """The last time at which most witnesses heard nothing from the launcher either, as far as is known."""
        self._loop.watch(control, self._read)

    @property
    def is_up(self) -> bool:
        """Whether there is a launcher."""
        return self._stands

    @property
    def waits(self) -> bool:
        """Whether it waits for another launcher."""
        return self._waits

    @property
    def may_be_continued(self) -> bool:
        """Whether another launcher may take over."""
        return self._outlive is not None

    @property
    def is_steady(self) -> bool:
        """For a witness: whether it hears the launcher, and has done so for long enough after a silence.

        TCP sends again after pauses that double. So others may hear a launcher that was cut off only when it has been
        back for as long as it was away, and the witnesses' answers matter to them until then.
        """
        now = time.monotonic()
        return now - self._heard_at < self._silent_after and now >= self._steady_at

    @property
    def has_unsent(self) -> bool:
        """Whether there is data that the launcher has not read."""
        return self._stands and self._stream.unsent

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, message: FromAgent) -> None:
        """Send a message; without a launcher, only output is kept: the next launcher gets the state as it is then.

        This never blocks: data that the launcher does not read yet stays in a buffer.
        """
        if self._stands:
            if isinstance(message, Output | Closed) and self.may_be_continued:
                self._unwritten.sent(message)
            self._stream.post(self._codec.encode(message))
            self._flush()
        elif self.waits and isinstance(message, Output | Closed):
            self.spool.add(message)

    def send_all(self, messages: Iterable[FromAgent]) -> None:
        """Send several messages in order."""
        for message in messages:
            self.send(message)

    def written(self, credit: Credit) -> None:
        """Record that the launcher has written output, which the next launcher need not receive."""
        self._unwritten.written(credit)

    def outlive(self, order: Outlive) -> None:
        """Prepare to wait for another launcher once this one is gone."""
        self._outlive = order

    def expect(self, beat: Beat) -> None:
        """From now on, consider the launcher gone after this heartbeat's time of silence, and send it heartbeats."""
        if self._silence is not None:
            self._silence.cancel()
        self._within = min(beat.within, _LONGEST_SILENCE)
        self._watch_silence()
        if beat.number and self.is_steady:
            self.send(Beat(number=beat.number))
        if self._next_beat is None:
            self._beat()

    def be_witness(self, order: BeWitness) -> None:
        """From now on, confirm numbered heartbeats only if others are not told that the launcher is silent."""
        self._silent_after = order.silence

    def ask_witnesses(self, order: AskWitnesses) -> None:
        """From now on, ask these witnesses before a silent launcher is considered gone."""
        if self._quorum is not None:
            self._quorum.close()

        def tried(answered: Sequence[bytes]) -> None:
            self.send(WitnessesTried(order.number, tuple(answered)))

        self._quorum = Quorum(self._loop, order, tried, self._excused)
        self._most_seconds = order.seconds

    def _excused(self, asked_at: float) -> None:
        if asked_at - self._heard_at < self._most_seconds:
            self._excused_at = max(self._excused_at, asked_at)

    def _flush(self) -> None:
        try:
            self._stream.flush()
        except ConnectionLost:
            self.ended()
            return
        writable = self._flush if self._stream.unsent else None
        if self._report == self._control:
            self._loop.watch(self._report, self._read, writable)
        else:
            self._loop.watch(self._report, writable=writable)

    def _read(self) -> None:
        try:
            payloads = self._stream.read()
        except ConnectionLost:
            self.ended()
            return
        if payloads is not None:
            self._hear(time.monotonic())
            for payload in payloads:
                self._owner.carry_out(self._codec.decode(payload))

    def _hear(self, now: float) -> None:
        silence = now - self._heard_at
        if silence >= self._silent_after and self._within < _LONGEST_SILENCE:
            self._steady_at = now + min(_RECOVERY * silence, _LONGEST_RECOVERY)
        self._heard_at = now

    def _beat(self) -> None:
        if not self._stream.unsent:  # Otherwise the unsent data is the sign of life.
            self.send(Beat())
        if not self._stands:
            return
        self._next_beat = self._loop.call_later(_BEAT_SECONDS, self._beat)

    # --- ending -------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        # Any data is a sign of life: a heartbeat may have to wait behind pieces of files.
        now = time.monotonic()
        left = max(self._heard_at, self._excused_at) + self._within - now
        if left <= 0:
            self.give_up()
            return
        if self._quorum is not None:
            unsuspicious = self._heard_at + _SUSPICIOUS * self._within - now
            if unsuspicious <= 0:
                self._quorum.ask()
            left = min(left, unsuspicious if unsuspicious > 0 else ASK_SECONDS)
        self._silence = self._loop.call_later(left, self._watch_silence)

    def ended(self) -> None:
        """Handle the loss of the launcher or of its connection; no-op if already known. The owner is notified later."""
        if not self._stands:
            return
        # After a silence, a live launcher may consider this host lost, and rely on its end.
        silent = self._silence is not None and time.monotonic() - self._heard_at > self._within / 2
        if self._outlive is None or silent or not self._owner.wants_to_wait():
            self.give_up()
            return
        self._let_go()
        self._ended_at = time.monotonic()
        self._waits = True
        for message in self._unwritten.pop_all():
            self.spool.add(message)
        self._loop.call_later(0.0, self._wait)

    def _wait(self) -> None:
        """Let another launcher connect. To be called only after the owner knows that the last one is gone."""
        if self._alone:
            return
        assert self._outlive is not None
        self._owner.waits()
        try:
            self._failover = FailoverListener(self._loop, self._outlive, self._continue, self.give_up)
        except OSError:
            self.give_up()  # No launcher could connect: the name is taken, or no descriptor is left.

    def give_up(self) -> None:
        """Close the connection to the launcher for good; no-op if there is none. The owner is notified later."""
        if self._alone:
            return
        self._alone = True
        self._waits = False
        if self._stands:
            self._let_go()
        if self._quorum is not None:
            self._quorum.close()
        if self._failover is not None:
            self._failover.close()
            self._failover = None
        self._loop.call_later(0.0, self._owner.alone)

    def _let_go(self) -> None:
        self._stands = False
        for fd in {self._control, self._report}:
            self._loop.watch(fd)
            os.close(fd)
        for timer in (self._silence, self._next_beat):
            if timer is not None:
                timer.cancel()
        self._silence = self._next_beat = None

    def _continue(self, connection: socket.socket) -> None:
        self._failover = None
        self._waits = False
        fd = connection.detach()
        self._begin(fd, fd)
        self._owner.taken_over(time.monotonic() - self._ended_at)
