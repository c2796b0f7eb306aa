"""Messages between workers and the roster. `wire.roster_client` is a worker's side.

A `Join` gives what the others need to reach this worker, and is answered by the world as soon as every worker has
joined. Joining again, after `Leave` or after the world broke, makes the next generation.

Requests (`Join`, `FetchCall`, `Result`) get exactly one reply; notices (all others) get none, so a dying process can
send one and go.

A launcher that shows how the job gets on hears it by `Progress`.

Workers can also tell each other things off the way of tensors: the roster passes a `Tell` on, unread, to workers that
`listen`, and drops it rather than wait for one that does not read. For what may be lost, and for what counts itself.

Errors:

    RendezvousError (RuntimeError)     the roster said no; `rank` is the one to blame, or None
    ├── NotWanted                      this worker is not to be in any world any more
    └── RosterUnreachable              nobody answers there, or not any more; the cause is a WireError
"""

from __future__ import annotations

import msgspec


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
    """By rank: the rank in the world before, or -1 for a worker without the job's state. Only where workers come and
    go, as the next one."""
    lost: tuple[str, ...] = ()
    """The workers of the world before that are not in this one, such as `rank 2 (worker 5) was killed by SIGKILL`."""
    state_lost: bool = False
    """Whether workers have held the job's state, and none of those is left."""
    training: int = 0
    """The number of the training whose state they hold: a script may have several, one after the other."""

    def worker(self, rank: int) -> int:
        """Return the number by which the roster knows a rank."""
        return self.workers[rank] if self.workers else rank


# --- from a worker -------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a connection: which worker speaks."""

    worker: int


class Accused(msgspec.Struct, frozen=True):
    """A worker's report of another one of its world, which it lost."""

    rank: int
    how: str
    certain: bool
    """Whether that is the end of its process; otherwise it is only not heard of."""
    forming: bool = False
    """Whether the two could not be connected at all."""
    left: bool = False
    """Whether it has left the world in good order."""


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Ask for a place in the next world. Answered by `World` or `Refused`."""

    contact: str
    timeout: float
    """Seconds after the latest join after which the roster refuses, if the world is not complete."""
    host: str = ""
    """Which host this is, if the roster is to find out which workers share one; equal for two workers if they do."""
    hostname: str = ""
    """Its name in messages."""
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
    again: bool = False
    """Whether the connection on which it may have been said before is lost, and its answer with it."""


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
    metrics: str = ""
    """`host:port` where it serves its metrics, if it does."""
    stalls: int = 0
    """The number of times that others waited for it until they were warned. Not only since its world began."""
    stalled_at: str = ""
    """Where in its program it was the last time."""


class Measures(msgspec.Struct, frozen=True, tag="measures"):
    """The measurements of a training whose batch adapts itself, for the scheduler. Sent as `Progress` is."""

    base: int
    """The batch of all workers for which the learning rate was chosen."""
    largest: int
    """The largest one that the user allows."""
    most_in_pass: int
    """The most samples of one worker in a pass."""
    hosts: int
    workers: int
    local: float
    """Samples of each worker in a pass."""
    step: float
    """Seconds of a pass with its all-reduce."""
    sync: float
    """The part of it in which the worker waits for the others."""
    square: float = 0.0
    """The squared norm of the true gradient; 0 while it is not known."""
    trace: float = 0.0
    """The trace of the covariance of one sample's gradient; 0 while it is not known."""
    progress: float = 0.0
    """Steps at the base batch that would have got as far."""
    on: tuple[str, ...] = ()
    """The names of the hosts, as the launcher knows them; (): they are not known."""


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
    """The function's return value. Answered by `Accepted`."""

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
    """A message from another worker to this one."""

    sender: int
    payload: bytes


class Absent(msgspec.Struct, frozen=True, tag="absent"):
    """That worker does not listen, or not any more: what it was to be told is dropped."""

    worker: int


class Probed(msgspec.Struct, frozen=True, tag="probed"):
    """The roster's time."""

    sent_ns: int
    """As it stood in the question."""
    now_ns: int
    clock: str
    """Which clock that is: see `farandole.base.wire.clock.identity`."""


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


class ScheduledBatch(msgspec.Struct, frozen=True, tag="scheduled-batch"):
    """The batch that the scheduler has chosen for the job. Replaces the one before."""

    samples: int
    """Of all workers together; 0: the job chooses by itself."""


class Ending(msgspec.Struct, frozen=True, tag="ending"):
    """The job is being ended: what ends this worker from now on means it."""


FromWorker = (
    Hello | Join | Leave | Holds | Leaving | Failure | Progress | Measures | FetchCall | Result | Listen | Tell | Probe
)
Heard = Told | Absent | Probed | Changed | Coming | Revoked | ScheduledBatch | Ending
FromRoster = World | Refused | Call | Accepted | Heard


# --- between rank 0 and the roster that it serves where no launcher does -----------------------------------------


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """The order to the child. Answered by `Serving` or `NotServed`."""

    size: int
    secret: bytes
    addresses: tuple[tuple[str, int], ...]
    """To listen on: address and port, 0 for any port that is free."""


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """It listens."""

    addresses: tuple[str, ...]


class NotServed(msgspec.Struct, frozen=True, tag="not-served"):
    """It cannot listen there, and ends."""

    reason: str


FromServer = Serving | NotServed
