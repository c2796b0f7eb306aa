"""What the launcher and its agents say to each other, in frames, over the agent's standard input and output.

No proof is needed: nobody else holds the ends of these pipes. Between hosts, ssh has proven both sides.

The agent says `Ready` first. What has a `number` is a question; the answer carries the same number.

Output is under flow control. Of each stream of each worker the agent sends at most `WINDOW` bytes ahead of what the
launcher has written; `Credit` says how much more that is now. So a reader that is slow costs a bounded amount of memory
and slows down only the workers that print. The same holds for each relayed connection, in both directions. Of files
the launcher has a bounded number of bytes on the way: the agent says when it has taken a piece.

An agent on another host and its launcher send each other a `Beat` when there is nothing else to say.
"""

from __future__ import annotations

import msgspec

# Comes before the first frame: what a login's start-up files print may come before it.
GREETING = b"\nfarandole agent: frames follow\n"

WINDOW = 256 * 1024

STDOUT = 1
STDERR = 2

PIECE_BYTES = 256 * 1024
"""Most bytes of a file in one message: small enough that an agent is never long at one."""


# --- to an agent ---------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a worker. Answered by `Started` or `NotStarted`."""

    rank: int
    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    inherit: bool = False
    """Whether the agent's own environment, which is what a login on this host gives, lies under that."""
    elastic: bool = False
    """Whether the job goes on when this worker ends: what it leaves behind ends with it, the agent says when it is
    stopped, and says `Leaving` when it is itself to go. `rank` is the number of the worker then."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End one worker and everything it started: SIGTERM, and SIGKILL after `grace` seconds. For elastic workers."""

    rank: int
    grace: float


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """So many more bytes of that stream were written and may follow."""

    rank: int
    stream: int
    count: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all workers and everything they started: SIGTERM, and SIGKILL after `grace` seconds. Answered by `Ended`.

    A second one with less grace makes it shorter.
    """

    grace: float


class SendSignal(msgspec.Struct, frozen=True, tag="send-signal"):
    """Send the workers, and nothing that they have started, this signal."""

    number: int
    worker: int | None = None
    """Only this one, by the number with which it was started; None: all."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The sender lives. Sent by both sides."""

    within: float = 0.0
    """From the launcher: seconds within which the agent will hear of it again; infinite when it is to be stopped."""


class Outlive(msgspec.Struct, frozen=True, tag="outlive"):
    """When the launcher's end of this connection closes, wait for another launcher before all workers are ended."""

    socket_name: str
    """Of the socket on which the agent waits (see `agent.failover_socket`). Each launcher gives another name: a process
    on this host can read the names that were used, and take them first."""
    seconds: float


class Task(msgspec.Struct, frozen=True, tag="task"):
    """Run a command to its end. Answered by `TaskEnded`."""

    number: int
    command: tuple[str, ...]
    environment: dict[str, str]
    """On top of the agent's."""
    directory: str
    input: bytes
    seconds: float
    """After which it is killed."""


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Find out whether a command can be started here. Answered by `Looked`."""

    number: int
    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    """On top of the agent's."""


class OpenPorts(msgspec.Struct, frozen=True, tag="open-ports"):
    """Let the agents of other hosts try to reach these addresses, until the first worker starts.

    Answered by `PortsOpened`.
    """

    number: int
    addresses: tuple[str, ...]


class ConnectTarget(msgspec.Struct, frozen=True):
    """Where a host may be reached."""

    host: int
    """Its number in the answer."""
    address: str
    port: int
    token: bytes
    """What the other side sends first, so that another machine with the same address is not mistaken for it."""


class TryConnect(msgspec.Struct, frozen=True, tag="try-connect"):
    """Try to reach other hosts, all at once. Answered by `ConnectTried`, at the latest after so many seconds."""

    number: int
    targets: tuple[ConnectTarget, ...]
    seconds: float


class Relayed(msgspec.Struct, frozen=True, tag="relayed"):
    """Bytes of a relayed connection. Sent by both sides."""

    link: int
    data: bytes


class RelayCredit(msgspec.Struct, frozen=True, tag="relay-credit"):
    """So many bytes of a relayed connection have been passed on, and as many more may follow. Sent by both sides."""

    link: int
    count: int


class RelayClosed(msgspec.Struct, frozen=True, tag="relay-closed"):
    """A relayed connection is over. Sent by both sides."""

    link: int


# --- from an agent -------------------------------------------------------------------------------------------


class Interface(msgspec.Struct, frozen=True):
    """One address of a host."""

    name: str
    """Of the network interface."""
    address: str
    """IPv4 or IPv6, with a scope if it needs one."""
    prefix: int
    """Bits that are the same for all of its network."""
    speed: int
    """Megabits per second, as the kernel says; 0 when it does not."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The agent obeys from now on; this is what its host is like. The first message."""

    version: str
    """Of farandole."""
    python: str
    hostname: str
    machine: str
    """The same for two agents if, and only if, they see the same kernel and the same network."""
    cores: int
    load: float
    """Processes that want to run, on average of the last minute."""
    gpus: int
    interfaces: tuple[Interface, ...]
    """Without loopback."""
    roster: str
    """host:port at which workers of this host reach the roster through the agent."""
    free_port: int
    """That was free a moment ago on all addresses."""
    clock: float
    """Seconds since 1970."""


class TaskEnded(msgspec.Struct, frozen=True, tag="task-ended"):
    """The task's process ended."""

    number: int
    code: int
    """Exit code, or minus the number of the signal that ended it; 127 when it could not be started."""
    output: bytes
    """The last it wrote, standard output and error together."""


class Looked(msgspec.Struct, frozen=True, tag="looked"):
    """Whether it can."""

    number: int
    problem: str = ""
    """Why not; empty when it can."""
    hint: str = ""
    versions: dict[str, str] = {}
    """Of `python` and of the frameworks that the script imports, if it is a Python script."""
    missing: tuple[str, ...] = ()
    """Modules that the script imports, and that are not there."""
    python: str = ""
    """Path of the interpreter that lacks them."""


class PortsOpened(msgspec.Struct, frozen=True, tag="ports-opened"):
    """Where the agent listens."""

    number: int
    ports: tuple[int, ...]
    """For each address; 0 where it cannot listen."""
    token: bytes


class ConnectOutcome(msgspec.Struct, frozen=True):
    """What came of connecting to one target."""

    host: int
    address: str
    seconds: float
    """Until the other side answered."""
    trouble: str
    """Why it did not answer; empty when it did."""


class ConnectTried(msgspec.Struct, frozen=True, tag="connect-tried"):
    """What came of connecting to all targets."""

    number: int
    answers: tuple[ConnectOutcome, ...]


class RelayOpened(msgspec.Struct, frozen=True, tag="relay-opened"):
    """Somebody on this host has connected to what should be the roster."""

    link: int


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The worker runs."""

    rank: int
    pid: int


class NotStarted(msgspec.Struct, frozen=True, tag="not-started"):
    """The operating system refused to start the worker."""

    rank: int
    reason: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """To a launcher that has taken over, right after `Ready`: what there is now."""

    pid: int
    """Of the agent."""
    workers: tuple[Started, ...]
    """Those that live."""
    ends: tuple[Exited, ...]
    """Of the others, as far as they are remembered. The launcher before may have heard of them."""
    streams: tuple[tuple[int, int], ...]
    """By rank and number: of what workers print, the streams of which more is to come, be it their end."""
    alone: float
    """Seconds for which there was no launcher."""
    lost: int
    """Bytes that workers have printed meanwhile, and that were not kept."""


class Output(msgspec.Struct, frozen=True, tag="output"):
    """The worker wrote something."""

    rank: int
    stream: int
    data: bytes


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Nothing more will come on that stream."""

    rank: int
    stream: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The worker's process ended. Its output, and what it started, may live on."""

    rank: int
    code: int
    """Exit code, or minus the number of the signal that ended it."""
    error_file: bytes = b""
    """What it wrote where TORCHELASTIC_ERROR_FILE says."""
    out_of_memory: str = ""
    """In which words the kernel says that it killed it for want of memory."""


class Stalled(msgspec.Struct, frozen=True, tag="stalled"):
    """The worker's process is stopped, or goes on again. Only of elastic workers."""

    rank: int
    stopped: bool


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """Somebody wants the agent to go, by SIGTERM. It stays until it is told to end, but no longer than it must."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Nothing of the job is left on this host, except processes that even SIGKILL did not end. The last message."""

    survivors: tuple[int, ...] = ()


# --- files -----------------------------------------------------------------------------------------------------
#
# The launcher offers a tree, a batch of entries at a time; the agent answers each `Offer` with `Lacking`. After the
# last one the launcher sends what is lacking, in pieces, and the agent answers each `Piece` with `Received`. When all
# is there, which may be at once, the agent lays the tree out and says `Shipped`; or `NotShipped`, at any time.
#
# Paths are bytes, relative to the tree's root, because nothing else can say every name that a file may have.


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A regular file of a tree."""

    path: bytes
    size: int
    executable: bool
    modified_ns: int
    """Since the epoch. The file on the host gets it too."""
    digest: bytes
    """SHA-256 of the content, 32 bytes."""


class Link(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """A symbolic link of a tree."""

    path: bytes
    target: bytes


class Directory(msgspec.Struct, frozen=True, array_like=True, tag="directory"):
    """A directory of a tree that would not be there without it, because nothing of the tree is in it."""

    path: bytes


Entry = File | Link | Directory


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A part of the tree that the workers are to run in. Answered by `Lacking`."""

    job: str
    """Id of the job; the tree is its own."""
    name: str
    """What the tree's root is called."""
    cache: str
    """The directory for what is shipped; "" is farandole/ship in the user's cache directory."""
    entries: tuple[Entry, ...]
    last: bool


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Bytes of a file that is lacking. Answered by `Received`."""

    digest: bytes
    """Of the whole file."""
    offset: int
    """Of its first byte in the file; pieces of a file come in order."""
    data: bytes
    packed: bool
    """Whether the data is compressed by zlib."""


class Lacking(msgspec.Struct, frozen=True, tag="lacking"):
    """What of the files of an `Offer` is not on this host, and no earlier `Lacking` has named."""

    files: tuple[tuple[bytes, int], ...]
    """Digest, and how many bytes of the file are here already: what an interrupted job left."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """One more piece was taken, in the order they were sent."""


class Damaged(msgspec.Struct, frozen=True, tag="damaged"):
    """What came of that file is not what was offered, and was thrown away. It should be sent from its beginning."""

    digest: bytes


class Shipped(msgspec.Struct, frozen=True, tag="shipped"):
    """The whole tree is here."""

    directory: str
    """Its root."""


class NotShipped(msgspec.Struct, frozen=True, tag="not-shipped"):
    """The tree cannot be had on this host. Nothing more is taken."""

    reason: str
    hint: str


Relay = Relayed | RelayCredit | RelayClosed
Answer = TaskEnded | Looked | PortsOpened | ConnectTried
ToFiles = Offer | Piece
FromFiles = Lacking | Received | Damaged | Shipped | NotShipped

ToAgent = (
    Start | Stop | Credit | End | SendSignal | Beat | Outlive | Task | Look | OpenPorts | TryConnect | Relay | ToFiles
)
FromAgent = (
    Ready
    | Resumed
    | Started
    | NotStarted
    | Output
    | Closed
    | Exited
    | Stalled
    | Leaving
    | Ended
    | Beat
    | Answer
    | RelayOpened
    | Relay
    | FromFiles
)
