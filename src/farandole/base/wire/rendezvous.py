"""Messages between workers and the roster. `wire.roster_client` is a worker's side.

A `Join` has the data that the others need to reach this worker, and is answered by the world as soon as every worker
has joined. Joining again, after `Leave` or after the world broke, makes the next generation.

Requests (`Join`, `FetchCall`, `Result`) get exactly one reply; notices (all others) get none, so a dying process can
send one and exit.

A launcher that displays progress gets it from `Progress`.

Workers can also send each other messages outside of collectives: the roster relays a `Relay`, without decoding its
payload, to workers that `Listen`, and drops it rather than wait for a worker that does not read. It is meant for
messages that may be lost.

A large job has thousands of joins and answers at once. They are immutable, so they are in no reference cycle, and the
garbage collector need not look at them (`gc=False`).

Errors:

    RendezvousError (RuntimeError)     the roster refused; `rank` is the rank that caused it, or None
    ├── NotWanted                      this worker is excluded from all later worlds
    └── RosterUnreachable              the roster does not answer, or no longer; the cause is a WireError
"""

from __future__ import annotations

import msgspec

from farandole.base.wire.encoding import encode
from farandole.base.wire.world_table import LatestTable

# How MessagePack begins bytes: no bytes at all, and bytes whose length follows in 4 bytes.
_EMPTY_BIN = b"\xc4\x00"
_BIN32 = b"\xc6"
_BIN32_LENGTH_BYTES = 4


class RendezvousError(RuntimeError):
    """The roster cannot be reached, or refused.

    Attributes:
        rank: the rank whose loss is the reason, or None.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class NotWanted(RendezvousError):
    """This worker is excluded from all later worlds."""


class RosterUnreachable(RendezvousError):
    """The roster cannot be reached, or no longer. The cause is a `WireError`."""


class World(msgspec.Struct, frozen=True):
    """The ordered list of workers at one generation, as one of them sees it."""

    generation: int
    rank: int
    size: int
    contacts: tuple[str, ...]
    """Contact data that each worker gave to `join`, by rank."""
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostnames: tuple[str, ...]
    """Host names by rank."""
    workers: tuple[int, ...] = ()
    """Worker numbers by rank, in an elastic job; empty: equal to the ranks."""
    previous: tuple[int, ...] = ()
    """Ranks in the previous world by rank, -1 for a worker without the job's state. Set only in an elastic job, like
    `lost`."""
    lost: tuple[str, ...] = ()
    """Lost members of the previous world, such as `rank 2 (worker 5) was killed by SIGKILL`."""
    state_lost: bool = False
    """Whether workers have held the job's state, and none of them is left."""
    training: int = 0
    """Number of the training whose state the members hold: a script may have several trainings in succession."""

    def worker(self, rank: int) -> int:
        """Return the worker number of a rank."""
        return self.workers[rank] if self.workers else rank


class Placed(msgspec.Struct, frozen=True, tag="world", gc=False):
    """The answer to a join: the place of one worker in a world, and the table that all workers of the world get.

    The table is encoded once for all that get it as a whole, and once for all that get its change.
    """

    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    table: bytes
    """The encoded table of the world, or its change: what `LatestTable` writes and reads."""

    def encoded(self) -> tuple[bytes, bytes]:
        """Return this message as MessagePack in two parts, the second of which is the table, without a copy of it."""
        without = encode(msgspec.structs.replace(self, table=b""))
        length = len(self.table).to_bytes(_BIN32_LENGTH_BYTES, "big")
        return without.removesuffix(_EMPTY_BIN) + _BIN32 + length, self.table

    def world(self, known: LatestTable) -> World:
        """Return the world as this worker sees it.

        Args:
            known: the table of the latest world that this worker has been in.

        Raises:
            msgspec.DecodeError: the table is not valid.
        """
        table = known.read(self.table)
        return World(
            generation=table.generation,
            rank=self.rank,
            size=len(table.hostnames),
            contacts=table.contacts,
            local_rank=self.local_rank,
            local_size=self.local_size,
            cross_rank=self.cross_rank,
            cross_size=self.cross_size,
            hostnames=table.hostnames,
            workers=table.workers,
            previous=table.previous,
            lost=table.lost,
            state_lost=table.state_lost,
            training=table.training,
        )


# --- from a worker -------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a connection: the number of its worker."""

    worker: int
    process: int = 0
    """The id of the worker's process, by which two processes in one place are told apart; 0: it is not known."""


class Accused(msgspec.Struct, frozen=True, gc=False):
    """A worker's report that it has lost another member of its world."""

    rank: int
    how: str
    """How it was lost, such as `closed its connections`."""
    certain: bool
    """Whether the lost member's process has ended; otherwise it is only silent."""
    forming: bool = False
    """Whether the two could not connect at all."""
    left: bool = False
    """Whether the lost member has left the world gracefully."""


class Join(msgspec.Struct, frozen=True, tag="join", gc=False):
    """Ask for a place in the next world. Answered by `Placed` or `RequestRefused`."""

    contact: str
    timeout: float
    """Seconds after the latest join after which the roster refuses an incomplete world."""
    host: str = ""
    """Identifier of the host, equal for workers that share it; "": the launcher has planned the places."""
    hostname: str = ""
    """The host's name for messages."""
    generation: int = 0
    """Number of the world that this worker abandons; 0: none. Used only in elastic jobs, like all fields below."""
    trained: bool = False
    """Whether it holds the job's state."""
    accused: tuple[Accused, ...] = ()
    """Members that it lost in that world."""
    arriving: bool = False
    """Whether to answer with a preview (a world of generation 0) instead of a place, if there is a world already."""
    open: bool = True
    """Whether newcomers may enter the next world; false in the middle of a step."""
    again: bool = False
    """Whether it repeats a join whose connection, and answer, may be lost."""
    table: bytes = b""
    """Digest of the table of the latest world that this worker has; empty: it has none."""


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """This worker has left the world of this generation gracefully."""

    generation: int


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """This worker is about to end with an error."""

    traceback: str
    exception: str
    consequence_of: int | None
    """The rank whose loss caused this failure; None: it has another cause."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """This worker's progress since its world began. Sent only if the launcher has requested it."""

    steps: int
    """Training steps done."""
    waited: float
    """Seconds that it has waited in collectives."""
    metrics: str = ""
    """`host:port` of its metrics endpoint; "": none."""
    stalls: int = 0
    """Number of stall warnings of other workers that waited for it, over all worlds."""
    stalled_at: str = ""
    """Its position in the program at the latest of these warnings."""


class Measures(msgspec.Struct, frozen=True, tag="measures"):
    """The measurements of a training with an adaptive batch, for the scheduler. Sent under the same condition as
    `Progress`."""

    base: int
    """Batch size of all workers, in samples, for which the learning rate was chosen."""
    largest: int
    """Largest batch size of all workers that the user allows."""
    most_in_pass: int
    """Largest number of samples of one worker in a pass."""
    hosts: int
    workers: int
    local: float
    """Samples of each worker in a pass."""
    step: float
    """Seconds of a pass with its allreduce."""
    sync: float
    """Seconds of the pass in which the worker waits for the others."""
    square: float = 0.0
    """Squared norm of the true gradient; 0: not known yet."""
    trace: float = 0.0
    """Trace of the covariance of one sample's gradient; 0: not known yet."""
    progress: float = 0.0
    """Equivalent number of steps at the base batch size."""
    on: tuple[str, ...] = ()
    """The launcher's names of the hosts; (): not known."""


class ReportedValue(msgspec.Struct, frozen=True, tag="value"):
    """A value for the program that has started the job. It may be lost."""

    payload: bytes
    """The pickled value. The launcher unpickles it only if the user gave it a callback for values."""


class Holds(msgspec.Struct, frozen=True, tag="holds"):
    """This worker holds the job's state from now on."""

    training: int = 0
    """Number of the script's training, from 1; 0: trainings are not counted."""


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """This worker must leave, and asks for a world without it at the end of a step."""

    why: str


class FetchCall(msgspec.Struct, frozen=True, tag="fetch-call"):
    """Ask for the function to run. Answered by `Call` or `RequestRefused`."""


class Result(msgspec.Struct, frozen=True, tag="result"):
    """The function's return value. Answered by `Accepted`."""

    payload: bytes


class Listen(msgspec.Struct, frozen=True, tag="listen"):
    """This connection receives the messages of other workers and the roster's notices."""


class Relay(msgspec.Struct, frozen=True, tag="tell"):
    """Relay a message to another worker, which gets `Relayed`; if it does not listen, the sender gets `Absent`."""

    to: int
    """Number of the other worker."""
    payload: bytes


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Request the roster's time. Answered by `Probed`."""

    sent_ns: int
    """The worker's time in ns."""


# --- from the roster -------------------------------------------------------------------------------------------


class RequestRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The request is refused."""

    reason: str
    rank: int | None = None
    """The rank whose loss is the reason."""
    evicted: bool = False
    """Whether this worker is excluded from all later worlds."""


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A pickled call, which is unpickled only after the handshake."""

    payload: bytes


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """A result has arrived."""


class Relayed(msgspec.Struct, frozen=True, tag="told"):
    """A message from another worker to this one."""

    sender: int
    payload: bytes


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """The receiver of a `Relay` does not listen, or no longer: the message is dropped."""

    worker: int


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """The roster's time."""

    sent_ns: int
    """The worker's time in ns, copied from the `Probe`."""
    now_ns: int
    """The roster's time in ns."""
    clock: str
    """Identity of the roster's clock: see `farandole.base.wire.clock.identity`."""


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The world of this generation is about to change: its members join again at the end of a step."""

    generation: int
    added: int
    """Number of newcomers that wait."""
    removed: int
    """Number of members that must leave."""
    reason: str


class Revoked(msgspec.Struct, frozen=True, tag="revoked"):
    """The world of this generation has lost a rank."""

    generation: int
    rank: int
    how: str
    certain: bool
    """Whether its process has ended; otherwise it is only silent."""


class Coming(msgspec.Struct, frozen=True, tag="coming"):
    """Workers have been started that have not joined yet. Replaces the previous notice."""

    workers: int
    """Number of these workers."""


class ScheduledBatch(msgspec.Struct, frozen=True, tag="scheduled-batch"):
    """The batch size that the scheduler has chosen for the job. Replaces the previous notice."""

    samples: int
    """Samples of all workers together; 0: the job chooses."""


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The job is being ended: a signal that ends this worker from now on is intended."""


FromWorker = (
    Hello
    | Join
    | Leave
    | Holds
    | Leaving
    | Failure
    | Progress
    | Measures
    | ReportedValue
    | FetchCall
    | Result
    | Listen
    | Relay
    | Probe
)
Heard = Relayed | Absent | Probed | Changed | Coming | Revoked | ScheduledBatch | Ending
FromRoster = Placed | RequestRefused | Call | Accepted | Heard


# --- between rank 0 and the roster that it starts if no launcher serves one --------------------------------------


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """The order to the child process. Answered by `Serving` or `NotServed`."""

    size: int
    secret: bytes
    addresses: tuple[tuple[str, int], ...]
    """Addresses to listen on, each with a port; port 0: any free port."""


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """The child process listens on these addresses."""

    addresses: tuple[str, ...]


class NotServed(msgspec.Struct, frozen=True, tag="not-served"):
    """The child process cannot listen, and ends."""

    reason: str


FromServer = Serving | NotServed
