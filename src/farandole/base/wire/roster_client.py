"""A worker's connection to the roster, which may be lost and found again.

A worker keeps one connection while it is reachable. If the roster may come back (`search_timeout`), a client that
listens and loses it reconnects, in the thread in which it reads. Only requests wait for that: their answers come from
the roster that is found.

Every new connection begins with the worker's standing messages, whether the roster has received them before or not: its
number, that it listens, that it holds the state, that it wants to leave, that it has left or failed. The latest message
of each kind is sent, and repeating it is harmless. Then comes the unanswered request. Other messages (`Progress`,
`Relay`, `Probe`) may be lost, and are not repeated.

Races:

- Data sent into a connection whose other end has died seems to arrive. So all of the above is repeated, not only what
  could not be sent.
- A request whose answer came just before the loss must not be repeated. The thread that reads the answer clears the
  request, and the same thread reconnects.
- If an answer was lost on its way, its request has still taken effect: the roster receives a second `Join` of a worker
  that it believes to be in a world. That has the same effect as if the worker had abandoned that world.
- `close` may be called at any time. It takes no lock, because the thread that holds one may be waiting to send. It sets
  `_closing` before it reads the connection, and the thread that reconnects sets the connection before it reads
  `_closing`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import NoReturn

import msgspec

from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError, WireTimeout
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
    Placed,
    Probe,
    Progress,
    Relay,
    RendezvousError,
    ReportedValue,
    RequestRefused,
    Result,
    RosterUnreachable,
    World,
)
from farandole.base.wire.roster_search import CLOSED, RosterSearch, dial_roster, first_connection
from farandole.base.wire.world_table import LatestTable

# Limit for immediate answers of the roster. The roster itself refuses a join whose time is over: it knows which workers
# are missing, and when the latest one joined. The client gives up only if the roster does not even answer a probe.
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
        """Identify as a worker on an open channel.

        Args:
            channel: the channel to the roster.
            worker: number of the worker.
            address: the roster's address, for messages.
            dial: reconnects to the roster, within the given number of seconds.
            search_timeout: seconds to search for a lost roster once this client listens; 0: no search.
        """
        self._address = address
        self._codec: Codec[FromRoster] = Codec(FromRoster)
        self._requests = threading.Lock()
        # Used only by the thread that joins.
        self._table = LatestTable()
        self._listener: threading.Thread | None = None
        self._heard: list[Callable[[Heard], None]] = []
        # Set by the thread that reads.
        self._heard_at = -math.inf
        """Time of the latest message from the roster, on the monotonic clock."""
        # Answers to requests, read by the listener.
        self._replies: SimpleQueue[FromRoster | WireError] = SimpleQueue()

        # Held while something is sent, but not during a search for the roster.
        self._sends = threading.Lock()
        # Protected by it: the messages that every new connection begins with, by kind, in this order.
        self._standing: dict[type[msgspec.Struct], msgspec.Struct] = {}
        # The unanswered request. Set with the lock; cleared without it, by the listener before it passes on the
        # answer: there is no other request before that.
        self._asked: msgspec.Struct | None = None

        # Once there is a listener, only it sets these; a new channel with the lock held.
        self._channel = channel
        self._away = False
        """Whether the roster is lost and being searched for."""
        self._over = ""
        """Why the roster is lost for good; "": it is not."""
        # Set by `close`, and by a request that was not answered in time.
        self._closing = False
        self._stop = threading.Event()
        """Set to end the search for the roster."""
        # Used only by the listener.
        self._search = None if dial is None or not search_timeout else RosterSearch(dial, search_timeout, self._stop)
        self._notify(Hello(worker, os.getpid()), standing=True)

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
        """Connect to the roster, including the handshake.

        Args:
            address: value of FARANDOLE_ROSTER; of several addresses, separated by commas, the first authenticated one
                is used.
            secret: value of FARANDOLE_SECRET, decoded from hex.
            worker: number of this worker, from FARANDOLE_RANK.
            timeout: seconds to wait for the connection.
            frame_limit: length of the longest accepted answer, in bytes.
            search_timeout: seconds to search for the roster if it cannot be reached now, or if it is lost when this
                client listens. Notices and requests are kept meanwhile. 0: no search.

        Raises:
            RosterUnreachable: nothing answers there, or it is not this job's roster.
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
            contact: data that the other workers need to reach this one.
            timeout: seconds that the roster waits after the latest worker has joined; None: the roster's own limit, in
                an elastic job.
            host: identifier of this worker's host, equal for workers that share it; "": the launcher has planned the
                places.
            hostname: the host's name, for messages.
            generation: number of the world that this worker was in; 0: none.
            trained: whether it holds the job's state.
            accused: members of that world that it lost.
            arriving: whether to return a preview instead of waiting for a place, if there is a world already: a world
                of generation 0 with this worker as the last rank.
            open: whether newcomers may enter the next world.

        Raises:
            RendezvousError: the world was not complete in time, or cannot be completed; names the missing workers.
        """
        join = Join(
            contact,
            timeout or 0.0,
            host,
            hostname,
            generation,
            trained,
            tuple(accused),
            arriving,
            open,
            table=self._table.digest,
        )
        reply = self._request(join, None if timeout is None else ANSWER_SECONDS)
        if not isinstance(reply, Placed):
            _unexpected(reply)
        try:
            return reply.world(self._table)
        except msgspec.DecodeError as error:
            raise self._broken(BadMessage(f"its table of the world is not valid: {error}")) from error

    def leave(self, generation: int) -> None:
        """Notify the roster that this worker has left a world gracefully."""
        self._notify(Leave(generation), standing=True)

    def report_state(self, training: int = 0) -> None:
        """Notify the roster that this worker holds the job's state.

        Args:
            training: number of the script's training, from 1; 0: trainings are not counted.
        """
        self._notify(Holds(training), standing=True)

    def ask_to_leave(self, why: str) -> None:
        """Ask for a world without this worker; `heard` gets a `Changed` once all members are notified."""
        self._notify(Leaving(why), standing=True)

    def report_failure(self, traceback: str, exception: str, consequence_of: int | None = None) -> None:
        """Report to the launcher why this worker is about to end.

        Args:
            traceback: the traceback as Python prints it; may be empty.
            exception: the exception in one line, such as `ValueError: boom`.
            consequence_of: the rank whose loss or departure caused this failure; None: it has another cause.
        """
        self._notify(Failure(traceback, exception, consequence_of), standing=True)

    def report_progress(
        self, steps: int, waited: float, metrics: str = "", stalls: int = 0, stalled_at: str = ""
    ) -> None:
        """Report this worker's progress to the launcher. The arguments are the fields of `Progress`."""
        self._notify(Progress(steps, waited, metrics, stalls, stalled_at))

    def report_measures(self, measures: Measures) -> None:
        """Report the training's measurements to the launcher."""
        self._notify(measures)

    def report_value(self, payload: bytes) -> None:
        """Send a pickled value to the launcher. It may be lost with the connection."""
        self._notify(ReportedValue(payload))

    def fetch_call(self) -> bytes:
        """Return the pickled call of a job that `farandole.run` started."""
        reply = self._request(FetchCall(), None)
        return reply.payload if isinstance(reply, Call) else _unexpected(reply)

    def send_result(self, payload: bytes) -> None:
        """Send the function's pickled result, and wait until it has arrived."""
        reply = self._request(Result(payload), None)
        if not isinstance(reply, Accepted):
            _unexpected(reply)

    def listen(self, heard: Callable[[Heard], None]) -> None:
        """Receive messages of other workers and notices of the roster from now on.

        Args:
            heard: callback for each message, in a thread of this client. It must return quickly and must not raise.
        """
        self._heard = [*self._heard, heard]
        if self._listener is None:
            self._listener = threading.Thread(target=self._read, name="farandole-roster", daemon=True)
            self._listener.start()
            self._notify(Listen(), standing=True)

    def ignore(self, heard: Callable[[Heard], None]) -> None:
        """Remove a callback that was passed to `listen`. No-op for any other."""
        self._heard = [each for each in self._heard if each != heard]

    def relay(self, worker: int, payload: bytes) -> None:
        """Send a message to another worker by way of the roster. It may be lost."""
        self._notify(Relay(worker, payload))

    def probe(self) -> None:
        """Request the roster's time; `heard` gets the answer."""
        self._notify(Probe(time.monotonic_ns()))

    def close(self) -> None:
        """Close the connection; notices that were sent still arrive. A join that waits in another thread fails.

        Returns immediately, unless the roster is being searched for and must be notified that this worker left or
        failed: then it waits for `ANSWER_SECONDS` at most.
        """
        self._closing = True
        self._replies.put(ConnectionLost(CLOSED))
        looking, listener = self._away, self._listener
        if looking and not self._stop.is_set() and not self._standing.keys().isdisjoint((Leave, Failure)):
            assert listener is not None
            listener.join(ANSWER_SECONDS)
        self._stop.set()
        self._channel.close()
        # An attempt to connect is not waited for: its thread sees that the search was stopped.
        if listener is not None and listener is not threading.current_thread() and not looking:
            listener.join(ANSWER_SECONDS)

    def __enter__(self) -> RosterClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- sending -----------------------------------------------------------------------------------------------

    def _notify(self, message: msgspec.Struct, *, standing: bool = False) -> None:
        """Send a notice; a standing one is repeated on every new connection."""
        try:
            with self._sends:
                if standing:
                    self._standing[type(message)] = message
                self._send(message, time.monotonic() + ANSWER_SECONDS)
        except WireError as error:
            raise self._broken(error) from error

    def _request(self, message: msgspec.Struct, silence: float | None) -> FromRoster:
        """Send a request, and wait for the answer.

        Args:
            message: the request.
            silence: longest silence of the roster in seconds, however long the answer takes; None: no limit, because
                the worker's launcher watches over it.
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
        """Send a message, with the lock held. During a search for the roster the message is dropped.

        Raises:
            WireError: it cannot be sent, and the roster will not be searched for.
        """
        if self._over:
            raise ConnectionLost(self._over)
        try:
            self._channel.send(self._codec.encode(message), deadline)
        except (ConnectionLost, WireTimeout):
            if not self._looks_again():
                raise
            # Half a message may have been sent. The listener wakes up, and reconnects.
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
            self._replies.put(reply)  # The next caller must also get it.
            raise reply
        return reply

    def _broken(self, error: WireError) -> RosterUnreachable:
        return RosterUnreachable(
            f"lost the roster at {self._address}: {error}. Has the launcher (farandole run) that started this worker "
            "ended?"
        )

    # --- receiving and reconnecting, in the listener's thread --------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                try:
                    self._hear()
                except ConnectionLost as loss:
                    self._connect_again(str(loss))
        except WireError as error:
            self._over = str(error)
            # A new exception: the traceback of the original one would keep this client and its callbacks alive.
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
        """Search for the roster, and repeat the standing messages and the unanswered request.

        Raises:
            ConnectionLost: there is no search, or it failed.
        """
        if self._search is None or not self._looks_again():
            raise ConnectionLost(loss)
        self._away = True
        self._channel.close()  # Wakes up the thread that sends.
        try:
            channel = self._search.find()
        except WireError as error:
            raise ConnectionLost(f"{loss}; {error}") from None
        if self._stop.is_set():
            # Late messages of a closed client could be mistaken for those of the worker's next client.
            channel.close()
            raise ConnectionLost(CLOSED)
        with self._sends:  # No other message may come first.
            self._channel = channel
            self._away = False
            deadline = time.monotonic() + ANSWER_SECONDS
            for message in self._to_say_again():
                self._send(message, deadline)
        if self._closing:
            channel.close()  # Gracefully: the last messages arrive.
            raise ConnectionLost(CLOSED)

    def _to_say_again(self) -> list[msgspec.Struct]:
        messages = [*self._standing.values()]
        if self._closing:
            # A notice to a closed connection could make the kernel drop the last messages before the roster reads them.
            return [each for each in messages if not isinstance(each, Listen)]
        asked = self._asked
        if isinstance(asked, Join):
            asked = msgspec.structs.replace(asked, again=True)
        return messages if asked is None else [*messages, asked]


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _unexpected(reply: FromRoster) -> NoReturn:
    if isinstance(reply, RequestRefused):
        raise NotWanted(reply.reason) if reply.evicted else RendezvousError(reply.reason, reply.rank)
    raise RendezvousError(f"the roster sent a {type(reply).__name__} that was not asked for: mixed versions?")
