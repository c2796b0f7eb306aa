"""A worker's connection to the roster, which may be lost and found again.

A worker keeps one connection for as long as it wants to be found. Where the roster may come back (`search_timeout`), a
client that listens and loses it connects again, in the thread in which it hears. Only a request waits for that: its
answer comes from the roster that is found.

Every new connection begins with what the roster has to know of this worker, whether it has heard it before or not: who
it is, that it listens, that it holds the state, that it wants to leave, that it has left or failed. Of each there is
one message, the latest, and it does no harm twice. Then comes the request that has no answer yet. What else was to be
sent (`Progress`, `Tell`, `Probe`) is dropped: it may be lost.

Races:

- What is sent into a connection whose other end has died seems to arrive. So all of the above is said again, not only
  what could not be sent.
- An answer that came just before the loss must not be asked for again. The thread that reads it strikes the request,
  and is the one that connects.
- An answer that was lost on its way has taken effect all the same: the roster hears a second `Join` of a worker that it
  believes to be in a world. That is as if this worker had turned its back on it.
- `close` may come at any moment of that. It takes no lock, because the thread that holds one may be waiting to send. It
  says that it closes before it looks at the connection, and the thread that connects sets the connection before it
  looks at that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn

import msgspec

from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost, WireError, WireTimeout
from farandole.base.wire.frames import FRAME_LIMIT, Codec
from farandole.base.wire.rendezvous import (
    Accepted,
    Accused,
    Call,
    Failure,
    FetchCall,
    FromRoster,
    Heard,
    Hello,
    Holds,
    Join,
    Leave,
    Leaving,
    Listen,
    Measures,
    NotWanted,
    Probe,
    Progress,
    Refused,
    RendezvousError,
    Result,
    RosterUnreachable,
    Tell,
    World,
)
from farandole.base.wire.roster_search import CLOSED, RosterSearch, dial_roster, first_connection

# What the roster has to say at once takes no longer. It refuses a join by itself when its time is up: it knows which
# workers are missing, and when the latest one came. The client gives up only if the roster does not even say that it
# is there.
ANSWER_SECONDS = 10.0


class RosterClient:
    """A worker's connection to the roster. Any thread may use it; requests wait for each other, notices do not wait."""

    def __init__(
        self,
        channel: Channel,
        worker: int,
        address: str,
        *,
        dial: Callable[[float], Channel] | None = None,
        search_timeout: float = 0.0,
    ) -> None:
        """Speak for a worker.

        Args:
            channel: the channel to the roster.
            worker: its number.
            address: the roster's address, as messages show it.
            dial: connects to it again, within the given number of seconds.
            search_timeout: seconds for which it is looked for when it is lost, from when this client listens on.
        """
        self._address = address
        self._codec: Codec[FromRoster] = Codec(FromRoster)
        self._requests = threading.Lock()
        self._listener: threading.Thread | None = None
        self._heard: list[Callable[[Heard], None]] = []
        # Set by the thread that reads.
        self._heard_at = -math.inf
        """When the roster has said something last, on the monotonic clock."""
        # What the listener read that nobody but a request waits for.
        self._replies: SimpleQueue[FromRoster | WireError] = SimpleQueue()

        # Held while something is sent, but not while the roster is looked for.
        self._sends = threading.Lock()
        # With it: what every new connection begins with, by kind; they are said in this order.
        self._standing: dict[type[msgspec.Struct], msgspec.Struct] = {}
        # The request that waits. Set with the lock; struck without, by the listener before it passes on the answer:
        # there is no other request before that.
        self._asked: msgspec.Struct | None = None

        # Set by the listener, from when there is one; a new channel with the lock held.
        self._channel = channel
        self._away = False
        """Whether the roster is lost and being looked for."""
        self._over = ""
        """Why it is lost for good."""
        # Set by `close`, and by a request that was not answered in time.
        self._closing = False
        self._stop = threading.Event()
        """Nobody waits for the roster to be found any more."""
        # The listener's.
        self._search = None if dial is None or not search_timeout else RosterSearch(dial, search_timeout, self._stop)
        self._notify(Hello(worker), standing=True)

    @classmethod
    def connect(
        cls,
        address: str,
        secret: bytes,
        *,
        worker: int,
        timeout: float = 30.0,
        frame_limit: int = FRAME_LIMIT,
        search_timeout: float = 0.0,
    ) -> RosterClient:
        """Connect to the roster and prove both sides to each other.

        Args:
            address: from FARANDOLE_ROSTER. Of several, separated by commas, the first that proves itself is taken.
            secret: the bytes that FARANDOLE_SECRET gives in hex.
            worker: this worker's number, from FARANDOLE_RANK.
            timeout: seconds.
            frame_limit: longest answer, in bytes, that will be taken.
            search_timeout: seconds for which the roster is looked for if it cannot be reached now, or if it is lost
                when this client listens. In between, notices and requests are kept.

        Raises:
            RosterUnreachable: nobody answers there, or it is not this job's roster.
        """
        dial = partial(dial_roster, address, secret, frame_limit)
        try:
            channel = first_connection(dial, timeout, search_timeout)
        except WireError as error:
            raise RosterUnreachable(
                f"worker {worker} cannot reach the roster at {address}: {error}. Has the launcher (farandole run) that "
                "started this worker ended?"
            ) from error
        return cls(channel, worker, address, dial=dial, search_timeout=search_timeout)

    def join(
        self,
        contact: str,
        timeout: float | None,
        *,
        host: str = "",
        hostname: str = "",
        generation: int = 0,
        trained: bool = False,
        accused: Sequence[Accused] = (),
        arriving: bool = False,
        open: bool = True,
    ) -> World:
        """Wait until every worker has joined, and return the new world.

        Args:
            contact: what the other workers need to reach this one.
            timeout: seconds that the roster waits after the latest worker has joined; None: it knows how long a job
                waits whose workers come and go.
            host: which host this is, where no launcher has told the roster; equal for two workers if they share one.
            hostname: the host's name, as messages show it.
            generation: of the world that this worker was in; 0: none.
            trained: whether it holds the job's state.
            accused: whom it lost there.
            arriving: do not wait for a place if there is a world already, but return what that is like, as a world of
                generation 0 in which this worker would be the last.
            open: whether newcomers may come into the next world.

        Raises:
            RendezvousError: the world was not complete in time, or cannot be any more; names missing workers.
        """
        join = Join(contact, timeout or 0.0, host, hostname, generation, trained, tuple(accused), arriving, open)
        reply = self._request(join, None if timeout is None else ANSWER_SECONDS)
        return reply if isinstance(reply, World) else _unexpected(reply)

    def leave(self, generation: int) -> None:
        """Tell the roster that this worker has left the world in good order."""
        self._notify(Leave(generation), standing=True)

    def report_state(self, training: int = 0) -> None:
        """Tell the roster that this worker holds the job's state, of that training of its script."""
        self._notify(Holds(training), standing=True)

    def ask_to_leave(self, why: str) -> None:
        """Ask for a world without this worker; `heard` gets a `Changed` when all have been told."""
        self._notify(Leaving(why), standing=True)

    def report_failure(self, traceback: str, exception: str, consequence_of: int | None = None) -> None:
        """Tell the launcher why this worker is about to end.

        Args:
            traceback: the traceback as Python prints it; may be empty.
            exception: one line, such as `ValueError: boom`.
            consequence_of: the rank whose loss or departure this failure merely follows; None: it has another cause.
        """
        self._notify(Failure(traceback, exception, consequence_of), standing=True)

    def report_progress(
        self, steps: int, waited: float, metrics: str = "", stalls: int = 0, stalled_at: str = ""
    ) -> None:
        """Tell the launcher how this worker gets on; see `Progress`."""
        self._notify(Progress(steps, waited, metrics, stalls, stalled_at))

    def report_measures(self, measures: Measures) -> None:
        """Tell the launcher what the training has measured."""
        self._notify(measures)

    def fetch_call(self) -> bytes:
        """Return the pickled call of a job that `farandole.run` started."""
        reply = self._request(FetchCall(), None)
        return reply.payload if isinstance(reply, Call) else _unexpected(reply)

    def send_result(self, payload: bytes) -> None:
        """Hand back what the function returned, and wait until it has arrived."""
        reply = self._request(Result(payload), None)
        if not isinstance(reply, Accepted):
            _unexpected(reply)

    def listen(self, heard: Callable[[Heard], None]) -> None:
        """From now on hear what other workers tell this one, and what the roster has to say by itself.

        Args:
            heard: called in a thread of this client. It must be quick and may not raise.
        """
        self._heard = [*self._heard, heard]
        if self._listener is None:
            self._listener = threading.Thread(target=self._read, name="farandole-roster", daemon=True)
            self._listener.start()
            self._notify(Listen(), standing=True)

    def ignore(self, heard: Callable[[Heard], None]) -> None:
        """Let a listener hear no more. No-op for one that does not listen."""
        self._heard = [each for each in self._heard if each != heard]

    def tell(self, worker: int, payload: bytes) -> None:
        """Tell another worker something. Whether it arrives is not known."""
        self._notify(Tell(worker, payload))

    def probe(self) -> None:
        """Ask what time it is at the roster; `heard` gets the answer."""
        self._notify(Probe(time.monotonic_ns()))

    def close(self) -> None:
        """Close the connection; notices that were sent still arrive. A join that waits in another thread fails.

        Takes no time unless the roster is being looked for and has to hear that this worker left or failed: then it
        waits for `ANSWER_SECONDS` at most.
        """
        self._closing = True
        self._replies.put(ConnectionLost(CLOSED))
        looking, listener = self._away, self._listener
        if looking and not self._stop.is_set() and not self._standing.keys().isdisjoint((Leave, Failure)):
            assert listener is not None
            listener.join(ANSWER_SECONDS)
        self._stop.set()
        self._channel.close()
        # An attempt to connect is not waited for: its thread sees that it is not wanted.
        if listener is not None and listener is not threading.current_thread() and not looking:
            listener.join(ANSWER_SECONDS)

    def __enter__(self) -> RosterClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- speaking ----------------------------------------------------------------------------------------------

    def _notify(self, message: msgspec.Struct, *, standing: bool = False) -> None:
        """Say something; if it is standing, on every new connection again."""
        try:
            with self._sends:
                if standing:
                    self._standing[type(message)] = message
                self._send(message, time.monotonic() + ANSWER_SECONDS)
        except WireError as error:
            raise self._broken(error) from error

    def _request(self, message: msgspec.Struct, silence: float | None) -> FromRoster:
        """Ask, and wait for the answer.

        Args:
            message: the request.
            silence: seconds within which the roster must show that it is there, for as long as the answer takes; None:
                others watch over it.
        """
        try:
            with self._requests:
                try:
                    with self._sends:
                        self._asked = message
                        self._send(message, _deadline(silence))
                    return self._patient_reply(silence)
                finally:
                    self._asked = None
        except WireTimeout as error:
            # A late answer must not be taken for the answer to the next request.
            self._closing = True
            self._stop.set()
            self._channel.close()
            raise RosterUnreachable(
                f"the roster at {self._address} did not answer within {silence:g} s. Is the launcher stopped (Ctrl-Z), "
                "or the network to it cut?"
            ) from error
        except WireError as error:
            raise self._broken(error) from error

    def _send(self, message: msgspec.Struct, deadline: float | None) -> None:
        """Send, with the lock held; while the roster is looked for, the channel is closed, and nothing happens.

        Raises:
            WireError: it cannot be sent, and the roster will not be looked for.
        """
        if self._over:
            raise ConnectionLost(self._over)
        try:
            self._channel.send(self._codec.encode(message), deadline)
        except (ConnectionLost, WireTimeout):
            if not self._looks_again():
                raise
            # Half a message may have been sent. The listener wakes, and connects again.
            self._channel.close()

    def _patient_reply(self, silence: float | None) -> FromRoster:
        asked_at = -math.inf
        while True:
            try:
                return self._reply(_deadline(silence))
            except WireTimeout:
                if self._heard_at < asked_at:
                    raise
                asked_at = time.monotonic()
                with self._sends:
                    self._send(Probe(time.monotonic_ns()), _deadline(silence))

    def _reply(self, deadline: float | None) -> FromRoster:
        while self._listener is None:
            message = self._receive(deadline)
            if not isinstance(message, Heard):
                return message
        try:
            reply = self._replies.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            raise WireTimeout("the other side did not answer in time") from None
        if isinstance(reply, WireError):
            self._replies.put(reply)  # The next caller must not wait in vain either.
            raise reply
        return reply

    def _broken(self, error: WireError) -> RosterUnreachable:
        return RosterUnreachable(
            f"lost the roster at {self._address}: {error}. Has the launcher (farandole run) that started this worker "
            "ended?"
        )

    # --- hearing, and connecting again: all in the listener's thread -------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                try:
                    self._hear()
                except ConnectionLost as loss:
                    self._connect_again(str(loss))
        except WireError as error:
            self._over = str(error)
            # A new one: the error itself would keep, by its traceback, this client and all that listens.
            self._replies.put(ConnectionLost(str(error)))

    def _hear(self) -> NoReturn:
        while True:
            message = self._receive()
            if isinstance(message, Heard):
                for heard in self._heard:
                    heard(message)
            else:
                self._asked = None
                self._replies.put(message)

    def _receive(self, deadline: float | None = None) -> FromRoster:
        message = self._codec.decode(self._channel.receive(deadline))
        self._heard_at = time.monotonic()
        return message

    def _looks_again(self) -> bool:
        return self._search is not None and not self._closing

    def _connect_again(self, loss: str) -> None:
        """Look for the roster until it is there, and say what it has to know.

        Raises:
            ConnectionLost: it is not to be looked for, or was in vain.
        """
        if self._search is None or not self._looks_again():
            raise ConnectionLost(loss)
        self._away = True
        self._channel.close()  # Wakes the thread that sends.
        try:
            channel = self._search.find()
        except WireError as error:
            raise ConnectionLost(f"{loss}; {error}") from None
        if self._stop.is_set():
            # Late words of a client that is closed could be taken for those of the worker's next one.
            channel.close()
            raise ConnectionLost(CLOSED)
        with self._sends:  # Nobody else says anything before.
            self._channel = channel
            self._away = False
            deadline = time.monotonic() + ANSWER_SECONDS
            for message in self._to_say_again():
                self._send(message, deadline)
        if self._closing:
            channel.close()  # In good order: the last words arrive.
            raise ConnectionLost(CLOSED)

    def _to_say_again(self) -> list[msgspec.Struct]:
        messages = [*self._standing.values()]
        if self._closing:
            # A notice to a worker that has gone could cost the last messages that the roster has yet to read.
            return [each for each in messages if not isinstance(each, Listen)]
        asked = self._asked
        if isinstance(asked, Join):
            asked = msgspec.structs.replace(asked, again=True)
        return messages if asked is None else [*messages, asked]


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _unexpected(reply: FromRoster) -> NoReturn:
    if isinstance(reply, Refused):
        raise NotWanted(reply.reason) if reply.evicted else RendezvousError(reply.reason, reply.rank)
    raise RendezvousError(f"the roster sent a {type(reply).__name__} that was not asked for: mixed versions?")
