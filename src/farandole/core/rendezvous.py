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
    ├── NotWanted                      this worker is not to be in any world any more
    └── RosterUnreachable              nobody answers there, or not any more; the cause is a WireError
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from farandole.core.channel import Channel
from farandole.core.wire import FRAME_LIMIT, Codec, ConnectionLost, WireError, WireTimeout

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


class NotWanted(RendezvousError):
    """This worker is not to be in any world any more."""


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
    workers: tuple[int, ...] = ()
    """By rank: the numbers of the workers, where these come and go; empty: they are numbered as their ranks."""
    previous: tuple[int, ...] = ()
    """By rank: the rank in the world before, or -1 for who does not hold the job's state. Only where workers come and
    go, as the next one."""
    lost: tuple[str, ...] = ()
    """Who was in the world before and is not in this one, such as `rank 2 (worker 5) was killed by SIGKILL`."""
    state_lost: bool = False
    """Whether workers have held the job's state, and none of those is left."""
    training: int = 0
    """The number of the training whose state they hold: a script may have several, one after the other."""

    def worker(self, rank: int) -> int:
        """Return the number by which the roster knows a rank."""
        return self.workers[rank] if self.workers else rank


# --- from a worker -------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a connection: who speaks."""

    worker: int


class Accused(msgspec.Struct, frozen=True):
    """What a worker says of another one of its world, which it lost."""

    rank: int
    how: str
    certain: bool
    """Whether that is the end of its process; otherwise it is only not heard of."""
    forming: bool = False
    """Whether the two could not be connected at all."""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Ask for a place in the next world. Answered by `World` or `Refused`."""

    contact: str
    timeout: float
    """Seconds after which the roster refuses, if the world is not complete."""
    host: str = ""
    """Which host this is, if the roster is to find out who shares one; equal for two workers if they do."""
    hostname: str = ""
    """What people call it."""
    generation: int = 0
    """Of the world that this worker turns its back on; 0: none. Read only where workers come and go, as the rest."""
    trained: bool = False
    """Whether it holds the job's state."""
    accused: tuple[Accused, ...] = ()
    """Whom it lost in that world."""
    arriving: bool = False
    """Do not wait for a place if there is a world already: only say what it is like. It is then of generation 0."""
    open: bool = True
    """Whether newcomers may come into the next world; not in the middle of a step."""


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


class Holds(msgspec.Struct, frozen=True, tag="holds"):
    """This worker holds the job's state from now on."""

    training: int = 0
    """Of which training of the script, from 1 on; 0: they are not counted."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """This worker has to leave, and asks for a world without it at the end of a step."""

    why: str


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
    evicted: bool = False
    """Whether it is this worker that is not wanted any more."""


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


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The world of that generation is to change: its members join again at the end of a step."""

    generation: int
    added: int
    """Newcomers that wait."""
    removed: int
    """Members that are to leave."""
    reason: str


class Revoked(msgspec.Struct, frozen=True, tag="revoked"):
    """The world of that generation has lost a rank."""

    generation: int
    rank: int
    how: str
    certain: bool
    """Whether its process has ended; otherwise it is only not heard of."""


class Coming(msgspec.Struct, frozen=True, tag="coming"):
    """So many workers have been started that are not here yet. Replaces what was said before."""

    workers: int


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The job is being ended: what ends this worker from now on means it."""


FromWorker = Hello | Join | Leave | Holds | Leaving | Failure | Progress | FetchCall | Result | Listen | Tell | Probe
Heard = Told | Absent | Probed | Changed | Coming | Revoked | Ending
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
        self._heard: list[Callable[[Heard], None]] = []
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
            timeout: seconds; None leaves it to the roster, which knows how long a job waits whose workers come and go.
            host: which host this is, where no launcher has told the roster; equal for two workers if they share one.
            hostname: what people call it.
            generation: of the world that this worker was in; 0: none.
            trained: whether it holds the job's state.
            accused: whom it lost there.
            arriving: do not wait for a place if there is a world already, but return what that is like, as a world of
                generation 0 in which this worker would be the last.
            open: whether newcomers may come into the next world.

        Raises:
            RendezvousError: the world was not complete in time, or cannot be any more; says who is missing.
        """
        join = Join(contact, timeout or 0.0, host, hostname, generation, trained, tuple(accused), arriving, open)
        reply = self._request(join, None if timeout is None else timeout + ANSWER_SECONDS)
        return reply if isinstance(reply, World) else _unexpected(reply)

    def leave(self, generation: int) -> None:
        """Tell the roster that this worker has left the world in good order."""
        self._notify(Leave(generation))

    def report_state(self, training: int = 0) -> None:
        """Tell the roster that this worker holds the job's state, of that training of its script."""
        self._notify(Holds(training))

    def ask_to_leave(self, why: str) -> None:
        """Ask for a world without this worker; `heard` gets a `Changed` when all have been told."""
        self._notify(Leaving(why))

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
        """From now on hear what other workers tell this one, and what the roster has to say by itself.

        Args:
            heard: called in a thread of this client. It must be quick and may not raise.
        """
        self._heard = [*self._heard, heard]
        if self._listener is None:
            self._listener = threading.Thread(target=self._read, name="farandole-roster", daemon=True)
            self._listener.start()
            self._notify(Listen())

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

    def _read(self) -> None:
        try:
            while True:
                message = self._codec.decode(self._channel.receive())
                if isinstance(message, Heard):
                    for heard in self._heard:
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
        raise NotWanted(reply.reason) if reply.evicted else RendezvousError(reply.reason, reply.rank)
    raise RendezvousError(f"the roster sent a {type(reply).__name__} that was not asked for: mixed versions?")
