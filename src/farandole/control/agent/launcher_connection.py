"""The agent's connection to its launcher: frames both ways, signs of life, and failover from one launcher to the next.

The connection *stands* while a launcher reads what is sent on it. When it ends, the launcher has died, or the network
is broken. If that launcher has allowed it (`Outlive`), the agent waits for another one; otherwise it is *alone* for
good.
A launcher that has promised signs of life (`Beat`) and sends none is not waited for, and no other one either: it may
live, and rely on this agent to end its workers.

Whatever is said may be what shows that the launcher is gone. The owner hears of that only when the loop has done all
else of this turn: so nobody who says something finds its own connections closed when `say` returns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.frame_stream import FrameStream, PipeEnd
from farandole.base.wire.frames import LARGEST_FRAME, Codec
from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.failover import FailoverListener, Spool, UnwrittenOutput
from farandole.control.agent.protocol import GREETING, Beat, Closed, Credit, FromAgent, Outlive, Output, ToAgent

if TYPE_CHECKING:
    import socket

# Between two signs of life to a launcher that has asked for them.
_BEAT_SECONDS = 0.5
# A launcher that is stopped may stay so for longer than any clock here can be set.
_LONGEST_SILENCE = 1e6


class Owner(Protocol):
    """The agent, as its connection calls it."""

    def obey(self, message: ToAgent) -> None:
        """Do what the launcher says."""

    def wants_to_wait(self) -> bool:
        """Return whether there is anything for which another launcher would be needed."""

    def waits(self) -> None:
        """Record that there is no launcher now, and that another one is waited for."""

    def taken_over(self, seconds: float) -> None:
        """Record that another launcher has connected, after so many seconds without one."""

    def alone(self) -> None:
        """Record that there is no launcher, and that there will be none."""


class LauncherConnection:
    """The connection to one launcher after the other.

    Half of its fields belong to the present launcher (`_begin` sets them anew), the others to all of them.

    Attributes:
        spool: what workers have printed while there was no launcher, or the last one had not written when it ended.

    Args:
        loop: of the agent.
        owner: is called with what the launcher says, and with what becomes of the connection.
        control: a descriptor on which the launcher is heard.
        report: one on which it is told; may be the same.
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
        """Whether another launcher is waited for, or is about to be."""
        self._ended_at = 0.0
        self._alone = False
        self._begin(control, report)

    def _begin(self, control: int, report: int) -> None:
        self._control = control
        self._report = report
        self._stands = True
        self._stream = FrameStream(PipeEnd(control), PipeEnd(report), LARGEST_FRAME)
        self._stream.post_bytes(GREETING)
        self._silence: Timer | None = None
        """Runs while the launcher is expected to be heard of."""
        self._next_beat: Timer | None = None
        self._within = 0.0
        """Seconds of silence after which the launcher counts as gone."""
        self._heard_at = time.monotonic()
        self._loop.watch(control, self._read)

    @property
    def stands(self) -> bool:
        """Whether there is a launcher."""
        return self._stands

    @property
    def waits(self) -> bool:
        """Whether another launcher is waited for."""
        return self._waits

    @property
    def may_be_continued(self) -> bool:
        """Whether another launcher may take over."""
        return self._outlive is not None

    @property
    def has_unsent(self) -> bool:
        """Whether something is still to be read by the launcher."""
        return self._stands and self._stream.unsent

    # --- talking ------------------------------------------------------------------------------------------------

    def say(self, message: FromAgent) -> None:
        """Tell the launcher; without one, only what workers print is kept: all else the next one is told as it is then.

        Nothing here waits: what the launcher does not read yet stays in a buffer.
        """
        if self._stands:
            if isinstance(message, Output | Closed) and self.may_be_continued:
                self._unwritten.sent(message)
            self._stream.post(self._codec.encode(message))
            self._flush()
        elif self.waits and isinstance(message, Output | Closed):
            self.spool.add(message)

    def say_all(self, messages: Iterable[FromAgent]) -> None:
        """Tell the launcher one after the other."""
        for message in messages:
            self.say(message)

    def written(self, credit: Credit) -> None:
        """Record that the launcher has written what a worker printed: the next one need not be told that."""
        self._unwritten.written(credit)

    def outlive(self, order: Outlive) -> None:
        """Wait for another launcher when this one is gone."""
        self._outlive = order

    def expect(self, seconds: float) -> None:
        """Count the launcher as gone if it is not heard of within that time, and let it hear of us from now on."""
        if self._silence is not None:
            self._silence.cancel()
        self._within = min(seconds, _LONGEST_SILENCE)
        self._silence = self._loop.call_later(self._within, self._silent)
        if self._next_beat is None:
            self._beat()

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
            self._heard_at = time.monotonic()
            for payload in payloads:
                self._owner.obey(self._codec.decode(payload))

    def _beat(self) -> None:
        if not self._stream.unsent:  # Otherwise what is on its way is the sign of life.
            self.say(Beat())
        if not self._stands:
            return
        self._next_beat = self._loop.call_later(_BEAT_SECONDS, self._beat)

    # --- ending -------------------------------------------------------------------------------------------------

    def _silent(self) -> None:
        # Whatever was heard is a sign of life: a beat may have to wait behind pieces of files.
        left = self._heard_at + self._within - time.monotonic()
        if left > 0:
            self._silence = self._loop.call_later(left, self._silent)
        else:
            self.give_up()

    def ended(self) -> None:
        """Record that the launcher is gone, or the way to it; no-op when that is known. The owner is told later."""
        if not self._stands:
            return
        # After a silence, a launcher that lives may have given us up, and count on our end.
        silent = self._silence is not None and time.monotonic() - self._heard_at > self._within / 2
        if self._outlive is None or silent or not self._owner.wants_to_wait():
            self.give_up()
            return
        self._let_go()
        self._ended_at = time.monotonic()
        self._waits = True
        for message in self._unwritten.take():
            self.spool.add(message)
        self._loop.call_later(0.0, self._wait)

    def _wait(self) -> None:
        """Let another launcher connect. Not before the owner knows that there is none now."""
        if self._alone:
            return
        assert self._outlive is not None
        self._owner.waits()
        try:
            self._failover = FailoverListener(self._loop, self._outlive, self._continue, self.give_up)
        except OSError:
            self.give_up()  # No launcher could connect: the name is taken, or no descriptor is left.

    def give_up(self) -> None:
        """Have no launcher any more; no-op when there is none. The owner is told later."""
        if self._alone:
            return
        self._alone = True
        self._waits = False
        if self._stands:
            self._let_go()
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
