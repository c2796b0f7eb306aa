"""How a worker meets the others: the roster's messages, and the client that speaks them.

A worker keeps one connection to the roster for as long as it wants to be found. `RosterClient.join` gives what the
others need to reach this worker, and returns the world as soon as every worker has joined. Joining again, after
`leave` or after the world broke, makes the next generation.

Requests (`Join`, `FetchCall`, `Result`) get exactly one reply; notices (`Hello`, `Leave`, `Failure`) get none, so a
dying process can send one and go.

Errors:

    RendezvousError (RuntimeError)     the roster cannot be reached, or said no; `rank` is who is to blame, or None
"""

from __future__ import annotations

import threading
import time
from typing import NoReturn

import msgspec

from farandole.core.wire import FRAME_LIMIT, Channel, Codec, WireError, WireTimeout

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


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """This worker has left the world of that generation in good order."""

    generation: int


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """This worker is about to end with an error."""

    traceback: str
    exception: str
    consequence_of: int | None
    """The rank whose loss this failure merely follows."""


class FetchCall(msgspec.Struct, frozen=True, tag="fetch-call"):
    """Ask for the function to run. Answered by `Call` or `Refused`."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """What the function returned. Answered by `Accepted`."""

    payload: bytes


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


FromWorker = Hello | Join | Leave | Failure | FetchCall | Result
FromRoster = World | Refused | Call | Accepted


class RosterClient:
    """A worker's connection to the roster. Any thread may use it; requests wait for each other, notices for nobody."""

    def __init__(self, channel: Channel, worker: int, address: str) -> None:
        self._channel = channel
        self._address = address
        self._codec: Codec[FromRoster] = Codec(FromRoster)
        self._requests = threading.Lock()
        self._sends = threading.Lock()
        self._notify(Hello(worker))

    @classmethod
    def connect(
        cls, address: str, secret: bytes, *, worker: int, timeout: float = 30.0, frame_limit: int = FRAME_LIMIT
    ) -> RosterClient:
        """Connect to the roster at `host:port` and prove both sides to each other.

        Args:
            address: from FARANDOLE_ROSTER.
            secret: the bytes that FARANDOLE_SECRET gives in hex.
            worker: this worker's number, from FARANDOLE_RANK.
            timeout: seconds.
            frame_limit: longest answer, in bytes, that will be taken.

        Raises:
            RendezvousError: nobody answers there, or it is not this job's roster.
        """
        try:
            return cls(Channel.connect(address, secret, timeout=timeout, limit=frame_limit), worker, address)
        except WireError as error:
            raise RendezvousError(
                f"worker {worker} cannot reach the roster at {address}: {error}. Has the launcher (farandole run) that "
                "started this worker ended?"
            ) from error

    def join(self, contact: str, timeout: float) -> World:
        """Wait until every worker has joined, and return the new world.

        Args:
            contact: what the other workers need to reach this one.
            timeout: seconds.

        Raises:
            RendezvousError: the world was not complete in time, or cannot be any more; says who is missing.
        """
        reply = self._request(Join(contact, timeout), timeout + ANSWER_SECONDS)
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

    def fetch_call(self) -> bytes:
        """Return the pickled call of a job that `farandole.run` started."""
        reply = self._request(FetchCall(), None)
        return reply.payload if isinstance(reply, Call) else _unexpected(reply)

    def send_result(self, payload: bytes) -> None:
        """Hand back what the function returned, and wait until it has arrived."""
        reply = self._request(Result(payload), None)
        if not isinstance(reply, Accepted):
            _unexpected(reply)

    def close(self) -> None:
        """Close the connection; notices that were sent still arrive. A join that waits in another thread fails."""
        self._channel.close()

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
                return self._codec.decode(self._channel.receive(deadline))
        except WireTimeout as error:
            # A late answer must not be taken for the answer to the next request.
            self._channel.close()
            raise RendezvousError(
                f"the roster at {self._address} did not answer within {timeout:g} s. Is the launcher stopped (Ctrl-Z), "
                "or the network to it cut?"
            ) from error
        except WireError as error:
            raise self._broken(error) from error

    def _broken(self, error: WireError) -> RendezvousError:
        return RendezvousError(
            f"lost the roster at {self._address}: {error}. Has the launcher (farandole run) that started this worker "
            "ended?"
        )


def _unexpected(reply: FromRoster) -> NoReturn:
    if isinstance(reply, Refused):
        raise RendezvousError(reply.reason, reply.rank)
    raise RendezvousError(f"the roster sent a {type(reply).__name__} that was not asked for: mixed versions?")
