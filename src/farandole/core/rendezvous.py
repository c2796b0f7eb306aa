"""How a worker meets the others: the roster's messages, and the client that speaks them.

A worker keeps one connection to the roster for as long as it wants to be found. `RosterClient.join` gives what the
others need to reach this worker, and returns the world as soon as every worker has joined. Joining again, after
`leave` or after the world broke, makes the next generation.

Requests (`Join`, `FetchCall`, `Result`) get exactly one reply; notices (all others) get none, so a dying process can
send one and go.

A launcher that shows how the job gets on hears it by `Progress`.

Workers can also tell each other things off the way of tensors: the roster passes a `Tell` on, unread, to workers that
`listen`, and drops it rather than wait for one that does not read. For what may be lost, and for what counts itself.

Errors:

    RendezvousError (RuntimeError)     the roster said no; `rank` is who is to blame, or None
    └── RosterUnreachable              nobody answers there, or not any more; the cause is a WireError
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from farandole.core.wire import FRAME_LIMIT, Channel, Codec, ConnectionLost, WireError, WireTimeout

# The roster refuses a join by itself when its time is up, and knows who is missing. Only when it keeps silent for this
# much longer does the client give up on its own.
ANSWER_SECONDS = 10.0


class RendezvousError(RuntimeError):
    """The roster cannot be reached, or refused.

    Attributes:
        rank: the rank whose loss is the reason, or None.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class RosterUnreachable(RendezvousError):
    """The roster cannot be reached, or not any more. The cause is a `WireError`."""


class World(msgspec.Struct, frozen=True, tag="world"):
    """The ordered list of workers at one generation, as one of them sees it."""

    generation: int
    rank: int
    size: int
    contacts: tuple[str, ...]
    """By rank: what each worker gave to `join`."""
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostnames: tuple[str, ...]
    """By rank."""


# --- from a worker -------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a connection: who speaks."""

    worker: int


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Ask for a place in the next world. Answered by `World` or `Refused`."""

    contact: str
    timeout: float
    """Seconds after which the roster refuses, if the world is not complete."""
    host: str = ""
    """Which host this is, if the roster is to find out who shares one; equal for two workers if they do."""
    hostname: str = ""
    """What people call it."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """This worker has left the world of that generation in good order."""

    generation: int


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """This worker is about to end with an error."""

    traceback: str
    exception: str
    consequence_of: int | None
    """The rank whose loss this failure merely follows."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How this worker gets on, since its world began. Only sent where the launcher has asked for it."""

    steps: int
    """Training steps done."""
    waited: float
    """Seconds that it has waited in collectives."""


class FetchCall(msgspec.Struct, frozen=True, tag="fetch-call"):
    """Ask for the function to run. Answered by `Call` or `Refused`."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What the function returned. Answered by `Accepted`."""

    payload: bytes


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """This connection takes what other workers tell this one."""


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """Pass something on to another worker. It hears `Told`; if it does not listen, the sender hears `Absent`."""

    to: int
    payload: bytes


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Ask what time it is. Heard as `Probed`."""

    sent_ns: int
    """The worker's own time."""


# --- from the roster -------------------------------------------------------------------------------------------


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request cannot be granted."""

    reason: str
    rank: int | None = None
    """The rank whose loss is the reason."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A pickled call; only ever loaded after the connection was proven."""

    payload: bytes


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """A result has arrived."""


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What another worker told this one."""

    sender: int
    payload: bytes


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """That worker does not listen, or not any more: what it was to be told is dropped."""

    worker: int


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """What time it is at the roster."""

    sent_ns: int
    """As it stood in the question."""
    now_ns: int
    clock: str
    """Which clock that is: see `farandole.core.clock.identity`."""


FromWorker = Hello | Join | Leave | Failure | Progress | FetchCall | Result | Listen | Tell | Probe
Heard = Told | Absent | Probed
FromRoster = World | Refused | Call | Accepted | Heard


class RosterClient:
    """A worker's connection to the roster. Any thread may use it; requests wait for each other, notices for nobody."""

    def __init__(self, channel: Channel, worker: int, address: str) -> None:
        self._channel = channel
        self._address = address
        self._codec: Codec[FromRoster] = Codec(FromRoster)
        self._requests = threading.Lock()
        self._sends = threading.Lock()
        self._listener: threading.Thread | None = None
        # What the listener read that nobody but a request waits for.
        self._replies: queue.SimpleQueue[FromRoster | WireError] = queue.SimpleQueue()
        self._notify(Hello(worker))

    @classmethod
    def connect(
        cls, address: str, secret: bytes, *, worker: int, timeout: float = 30.0, frame_limit: int = FRAME_LIMIT
    ) -> RosterClient:
        """Connect to the roster and prove both sides to each other.

        Args:
            address: from FARANDOLE_ROSTER. Of several, separated by commas, the first that proves itself is taken.
            secret: the bytes that FARANDOLE_SECRET gives in hex.
            worker: this worker's number, from FARANDOLE_RANK.
            timeout: seconds.
            frame_limit: longest answer, in bytes, that will be taken.

        Raises:
            RosterUnreachable: nobody answers there, or it is not this job's roster.
        """
        try:
            return cls(Channel.connect(address, secret, timeout=timeout, limit=frame_limit), worker, address)
        except WireError as error:
            raise RosterUnreachable(
                f"worker {worker} cannot reach the roster at {address}: {error}. Has the launcher (farandole run) that "
                "started this worker ended?"
            ) from error

    def join(self, contact: str, timeout: float, *, host: str = "", hostname: str = "") -> World:
        """Wait until every worker has joined, and return the new world.

        Args:
            contact: what the other workers need to reach this one.
            timeout: seconds.
            host: which host this is, where no launcher has told the roster; equal for two workers if they share one.
            hostname: what people call it.

        Raises:
            RendezvousError: the world was not complete in time, or cannot be any more; says who is missing.
        """
        reply = self._request(Join(contact, timeout, host, hostname), timeout + ANSWER_SECONDS)
        return reply if isinstance(reply, World) else _unexpected(reply)

    def leave(self, generation: int) -> None:
        """Tell the roster that this worker has left the world in good order."""
        self._notify(Leave(generation))

    def report_failure(self, traceback: str, exception: str, consequence_of: int | None = None) -> None:
        """Tell the launcher why this worker is about to end.

        Args:
            traceback: as Python prints it; may be empty.
            exception: one line, such as `ValueError: boom`.
            consequence_of: the rank whose loss this failure merely follows; None when this worker failed by itself.
        """
        self._notify(Failure(traceback, exception, consequence_of))

    def report_progress(self, steps: int, waited: float) -> None:
        """Tell the launcher how this worker gets on.

        Args:
            steps: training steps done since the world began.
            waited: seconds spent waiting in collectives since then.
        """
        self._notify(Progress(steps, waited))

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
        """From now on, hear what other workers tell this one, and what time it is at the roster. Once, after joining.

        Args:
            heard: called in a thread of this client. It must be quick and may not raise.
        """
        self._listener = threading.Thread(target=self._read, args=(heard,), name="farandole-roster", daemon=True)
        self._listener.start()
        self._notify(Listen())

    def tell(self, worker: int, payload: bytes) -> None:
        """Tell another worker something. Whether it arrives is not known."""
        self._notify(Tell(worker, payload))

    def probe(self) -> None:
        """Ask what time it is at the roster; `heard` gets the answer."""
        self._notify(Probe(time.monotonic_ns()))

    def close(self) -> None:
        """Close the connection; notices that were sent still arrive. A join that waits in another thread fails."""
        self._channel.close()
        if self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join(ANSWER_SECONDS)

    def __enter__(self) -> RosterClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _notify(self, message: msgspec.Struct) -> None:
        try:
            with self._sends:
                self._channel.send(self._codec.encode(message), time.monotonic() + ANSWER_SECONDS)
        except WireError as error:
            raise self._broken(error) from error

    def _request(self, message: msgspec.Struct, timeout: float | None) -> FromRoster:
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            with self._requests:
                with self._sends:
                    self._channel.send(self._codec.encode(message), deadline)
                return self._reply(deadline)
        except WireTimeout as error:
            # A late answer must not be taken for the answer to the next request.
            self._channel.close()
            raise RosterUnreachable(
                f"the roster at {self._address} did not answer within {timeout:g} s. Is the launcher stopped (Ctrl-Z), "
                "or the network to it cut?"
            ) from error
        except WireError as error:
            raise self._broken(error) from error

    def _reply(self, deadline: float | None) -> FromRoster:
        if self._listener is None:
            return self._codec.decode(self._channel.receive(deadline))
        try:
            reply = self._replies.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise WireTimeout("the other side did not answer in time") from None
        if isinstance(reply, WireError):
            self._replies.put(reply)  # Whoever asks next shall not wait in vain either.
            raise reply
        return reply

    def _read(self, heard: Callable[[Heard], None]) -> None:
        try:
            while True:
                message = self._codec.decode(self._channel.receive())
                if isinstance(message, Heard):
                    heard(message)
                else:
                    self._replies.put(message)
        except WireError as error:
            # A new one: the error itself would keep, by its traceback, this client and all that listens.
            self._replies.put(ConnectionLost(str(error)))

    def _broken(self, error: WireError) -> RosterUnreachable:
        return RosterUnreachable(
            f"lost the roster at {self._address}: {error}. Has the launcher (farandole run) that started this worker "
            "ended?"
        )


def _unexpected(reply: FromRoster) -> NoReturn:
    if isinstance(reply, Refused):
        raise RendezvousError(reply.reason, reply.rank)
    raise RendezvousError(f"the roster sent a {type(reply).__name__} that was not asked for: mixed versions?")
