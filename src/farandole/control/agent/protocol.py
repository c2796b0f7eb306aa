"""The protocol of the launcher and its agents: frames over the agent's standard input and output.

No authentication is needed: no other process holds the ends of these pipes. Between hosts, ssh has authenticated both
sides.

The agent sends `Ready` first. A message with a `number` is a question; its answer carries the same number.

Output is under flow control. For each stream of each worker the agent sends at most `WINDOW` bytes ahead of what the
launcher has written; `Credit` allows more. So a slow reader costs a bounded amount of memory, and slows down only the
workers that print. The same holds for each relayed connection, in both directions; towards a worker, a frame of up to
4 MiB is not divided. It also holds, with `BRANCH_WINDOW`, for each *branch*: a process such as ssh, by which an agent
reaches the agent of another host for the launcher. For files, the launcher has a bounded number of bytes in transit:
the agent confirms each piece.

An agent on another host and its launcher send each other a `Beat` when there is nothing else to send.
"""

from __future__ import annotations

import msgspec

# Precedes the first frame: the start-up files of a login may print text before it.
GREETING = b"\nfarandole agent: frames follow\n"

WINDOW = 256 * 1024
BRANCH_WINDOW = 1024 * 1024
"""The same for a branch, which may carry files to many hosts."""

STDOUT = 1
STDERR = 2

PIECE_BYTES = 256 * 1024
"""Maximum number of bytes of a file in one message: small enough that a message does not occupy an agent for long."""


# --- to an agent ---------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a worker. Answered by `Started` or `NotStarted`."""

    rank: int
    command: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    inherit: bool = False
    """Whether the worker's environment extends the agent's, which is that of a login on this host."""
    slot_numbers: str = ""
    """The numbers of the job's slots on the host, in the form of `gpus.of_slots`: the worker sees the GPUs of these
        slots. "": slots have no numbers."""
    elastic: bool = False
    """Whether the job continues when this worker ends. Then the worker's remaining processes are ended as well, the
        agent reports when it is stopped, and sends `Leaving` when it must itself end; `rank` is the worker's number."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End one worker and its descendants: SIGTERM, and SIGKILL after `grace` seconds. For elastic workers."""

    rank: int
    grace: float


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """The launcher has written this many more bytes of a stream, so as many more may follow."""

    rank: int
    stream: int
    count: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all workers and their descendants: SIGTERM, and SIGKILL after `grace` seconds. Answered by `AllEnded`.

    A second one with a shorter grace period shortens the first.
    """

    grace: float


class SendSignal(msgspec.Struct, frozen=True, tag="send-signal"):
    """Send a signal to the workers, but not to their child processes."""

    number: int
    worker: int | None = None
    """The number of the only worker to signal; None: all."""


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """The sender is alive. Sent by both sides."""

    within: float = 0.0
    """From the launcher: maximum seconds until its next message; infinite if it is about to be suspended."""
    number: int = 0
    """From the launcher: a witness that hears it answers at once with a heartbeat of the same number; 0: no answer."""


class Outlive(msgspec.Struct, frozen=True, tag="outlive"):
    """When the launcher's end of this connection closes, wait for another launcher before ending all workers."""

    socket_name: str
    """Name of the socket on which the agent waits (see `agent.failover_socket`). Each launcher gives a new name, since
    any process on this host can read the names that were used, and take them first."""
    seconds: float


class Task(msgspec.Struct, frozen=True, tag="task"):
    """Run a command to its end. Answered by `TaskEnded`."""

    number: int
    command: tuple[str, ...]
    environment: dict[str, str]
    """Variables that are added to the agent's environment."""
    directory: str
    input: bytes
    seconds: float
    """Seconds after which it is killed."""


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Check whether a command can be started here. Answered by `Looked`."""

    number: int
    command: tuple[str, ...]
    directory: str
    environment: dict[str, str]
    """Variables that are added to the agent's environment."""


class OpenPorts(msgspec.Struct, frozen=True, tag="open-ports"):
    """Listen on these addresses for the agents of other hosts, until the first worker starts.

    Answered by `PortsOpened`.
    """

    number: int
    addresses: tuple[str, ...]


class ConnectTarget(msgspec.Struct, frozen=True):
    """The addresses at which a host may be reached."""

    host: int
    """Its number in the answer."""
    address: str
    port: int
    token: bytes
    """The first bytes from the other side, which distinguish it from another machine with the same address."""


class TryConnect(msgspec.Struct, frozen=True, tag="try-connect"):
    """Try to reach other hosts, all at once. Answered by `ConnectTried` within `seconds`."""

    number: int
    targets: tuple[ConnectTarget, ...]
    seconds: float


class BeWitness(msgspec.Struct, frozen=True, tag="be-witness"):
    """Tell agents that ask for it whether the launcher is silent (see `quorum`). Answered by `WitnessReady`.

    It replaces an earlier order, whose questions are not answered any more.
    """

    number: int
    key: bytes
    identity: bytes
    """What questions to this witness contain."""
    silence: float
    """Seconds after which it says that the launcher is silent, and confirms no heartbeat for a while."""


class WitnessPlace(msgspec.Struct, frozen=True):
    """Where a witness answers."""

    identity: bytes
    addresses: tuple[str, ...]
    """All addresses of its host."""
    port: int


class AskWitnesses(msgspec.Struct, frozen=True, tag="ask-witnesses"):
    """When the launcher falls silent, ask the witnesses, and keep the workers while most of them do not hear it.

    They are asked once now. Answered by `WitnessesTried`. It replaces an earlier order.
    """

    number: int
    key: bytes
    witnesses: tuple[WitnessPlace, ...]
    """Some may be missing: those whose places are not known."""
    most: int
    """How many witnesses are a majority."""
    seconds: float
    """Seconds of silence after which the workers end in any case."""


class Relayed(msgspec.Struct, frozen=True, tag="relayed"):
    """Data of a relayed connection. Sent by both sides."""

    link: int
    data: bytes
    kept: int = 0
    """Number of bytes at the end of `data` that an agent keeps for `RelayedAgain`; 0: what it keeps does not change."""


class RelayedAgain(msgspec.Struct, frozen=True, tag="relayed-again"):
    """Data of a relayed connection, to which the agent appends the bytes that it keeps. All workers of a host get the
    same table of a world, so it is sent to their agent once."""

    link: int
    data: bytes


class RelayCredit(msgspec.Struct, frozen=True, tag="relay-credit"):
    """This many bytes of a relayed connection were passed on, so as many more may follow. Sent by both sides."""

    link: int
    count: int


class RelayClosed(msgspec.Struct, frozen=True, tag="relay-closed"):
    """A relayed connection is over. Sent by both sides."""

    link: int


class OpenBranch(msgspec.Struct, frozen=True, tag="open-branch"):
    """Start a process that leads to the agent of another host, such as ssh. Answered by `BranchEnded` at its end."""

    branch: int
    command: tuple[str, ...]


class BranchData(msgspec.Struct, frozen=True, tag="branch-data"):
    """Data for the standard input of a branch's process, or from its standard output. Sent by both sides."""

    branch: int
    data: bytes


class BranchCredit(msgspec.Struct, frozen=True, tag="branch-credit"):
    """This many bytes of a branch were passed on, so as many more may follow. Sent by both sides."""

    branch: int
    count: int


class BranchReady(msgspec.Struct, frozen=True, tag="branch-ready"):
    """The agent at the end of a branch is ready: earlier lines on standard error cannot explain the branch's end."""

    branch: int


class CloseBranch(msgspec.Struct, frozen=True, tag="close-branch"):
    """Close the standard input of a branch's process, once everything was passed on."""

    branch: int


class KillBranch(msgspec.Struct, frozen=True, tag="kill-branch"):
    """Kill the process of a branch."""

    branch: int


# --- from an agent -------------------------------------------------------------------------------------------


class Interface(msgspec.Struct, frozen=True):
    """One address of a host."""

    name: str
    """Name of the network interface."""
    address: str
    """IPv4 or IPv6, with a scope if it needs one."""
    prefix: int
    """Length of the network prefix, in bits."""
    speed: int
    """Megabits per second according to the kernel; 0 if unknown."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The agent is ready for orders; the facts about its host. The first message."""

    version: str
    """Version of farandole."""
    python: str
    hostname: str
    machine: str
    """An id that is equal for two agents if, and only if, they have the same kernel and network namespace."""
    cores: int
    load: float
    """Load average of the last minute."""
    gpus: int
    interfaces: tuple[Interface, ...]
    """Without loopback."""
    roster: str
    """host:port at which workers of this host reach the roster through the agent."""
    free_port: int
    """A port that was free on all addresses a moment ago."""
    clock: float
    """Seconds since 1970."""


class TaskEnded(msgspec.Struct, frozen=True, tag="task-ended"):
    """The task's process ended."""

    number: int
    code: int
    """Exit code, or minus the number of the signal that ended it; 127 when it could not be started."""
    output: bytes
    """The end of its standard output and error, merged."""


class Looked(msgspec.Struct, frozen=True, tag="looked"):
    """The result of `Look`."""

    number: int
    problem: str = ""
    """Why the command cannot be started; "" if it can."""
    hint: str = ""
    versions: dict[str, str] = {}
    """Versions of `python` and of the frameworks that the script imports, if it is a Python script."""
    missing: tuple[str, ...] = ()
    """Modules that the script imports, and that are not installed."""
    python: str = ""
    """Path of the interpreter that lacks them."""


class PortsOpened(msgspec.Struct, frozen=True, tag="ports-opened"):
    """The ports on which the agent listens."""

    number: int
    ports: tuple[int, ...]
    """One for each address; 0 if the agent cannot listen there."""
    token: bytes


class ConnectOutcome(msgspec.Struct, frozen=True):
    """The result of connecting to one target."""

    host: int
    address: str
    seconds: float
    """Seconds until the other side answered."""
    trouble: str
    """Why it did not answer; "" if it did."""


class ConnectTried(msgspec.Struct, frozen=True, tag="connect-tried"):
    """The results of connecting to all targets."""

    number: int
    answers: tuple[ConnectOutcome, ...]


class WitnessReady(msgspec.Struct, frozen=True, tag="witness-ready"):
    """The agent answers other agents."""

    number: int
    port: int
    """The UDP port; 0 if it cannot listen."""


class WitnessesTried(msgspec.Struct, frozen=True, tag="witnesses-tried"):
    """The agent has asked the witnesses for the first time."""

    number: int
    answered: tuple[bytes, ...]
    """The identities of those that have answered."""


class RelayOpened(msgspec.Struct, frozen=True, tag="relay-opened"):
    """A process on this host has connected to the address of the roster."""

    link: int


class BranchEnded(msgspec.Struct, frozen=True, tag="branch-ended"):
    """The process of a branch ended, and its output was passed on."""

    branch: int
    code: int | None
    """Exit code, or minus the number of the signal that ended it; None: it could not be started."""
    said: str
    """Its last lines on standard error since `BranchReady`, or why it could not be started."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The worker was started."""

    rank: int
    pid: int


class NotStarted(msgspec.Struct, frozen=True, tag="not-started"):
    """The operating system refused to start the worker."""

    rank: int
    reason: str


class Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    """The state of the agent, for a launcher that has taken over, right after `Ready`."""

    pid: int
    """Process id of the agent."""
    workers: tuple[Started, ...]
    """The live workers."""
    ends: tuple[Exited, ...]
    """The recorded ends of the other workers. The previous launcher may have received them."""
    streams: tuple[tuple[int, int], ...]
    """Rank and number of the output streams about which messages follow, if only about their end."""
    alone: float
    """Seconds without a launcher."""
    lost: int
    """Number of bytes of output that were dropped meanwhile."""


class Output(msgspec.Struct, frozen=True, tag="output"):
    """The worker wrote something."""

    rank: int
    stream: int
    data: bytes


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The stream has ended."""

    rank: int
    stream: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The worker's process ended. Its output and its child processes may outlive it."""

    rank: int
    code: int
    """Exit code, or minus the number of the signal that ended it."""
    error_file: bytes = b""
    """Content of the file named in TORCHELASTIC_ERROR_FILE."""
    out_of_memory: str = ""
    """The kernel's evidence that it was killed because of lack of memory."""


class Stalled(msgspec.Struct, frozen=True, tag="stalled"):
    """The worker's process was stopped, or was continued. Only for elastic workers."""

    rank: int
    stopped: bool


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """The agent was asked to end by SIGTERM. It stays until it is ordered to end, but no longer than necessary."""


class AllEnded(msgspec.Struct, frozen=True, tag="ended"):
    """No part of the job is left on this host, except processes that survived even SIGKILL. The last message."""

    survivors: tuple[int, ...] = ()


# --- files -----------------------------------------------------------------------------------------------------
#
# The launcher offers a tree, a batch of entries at a time; the agent answers each `Offer` with `Lacking`. After the
# last one the launcher sends the missing files in pieces, and the agent answers each `Piece` with `Received`. When all
# files are there, which may be at once, the agent lays the tree out and sends `Shipped`; or `NotShipped`, at any time.
#
# Paths are bytes, relative to the tree's root, because no other type can express every file name.


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A regular file of a tree."""

    path: bytes
    size: int
    executable: bool
    modified_ns: int
    """Nanoseconds since the epoch; also set for the file on the host."""
    digest: bytes
    """SHA-256 of the content, 32 bytes."""


class Link(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """A symbolic link of a tree."""

    path: bytes
    target: bytes


class Directory(msgspec.Struct, frozen=True, array_like=True, tag="directory"):
    """An empty directory of a tree."""

    path: bytes


Entry = File | Link | Directory


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A part of the tree that the workers run in. Answered by `Lacking`."""

    job: str
    """Id of the job, which owns the tree."""
    name: str
    """Name of the tree's root."""
    cache: str
    """The directory for shipped files; "" is farandole/ship in the user's cache directory."""
    entries: tuple[Entry, ...]
    last: bool


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """A piece of a missing file. Answered by `Received`."""

    digest: bytes
    """Digest of the whole file."""
    offset: int
    """Offset of its first byte in the file; pieces of a file come in order."""
    data: bytes
    packed: bool
    """Whether the data is compressed by zlib."""


class Lacking(msgspec.Struct, frozen=True, tag="lacking"):
    """The files of an `Offer` that are not on this host, and that no earlier `Lacking` has named."""

    files: tuple[tuple[bytes, int], ...]
    """Digest of each file, and the number of its bytes that an interrupted job has already received."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """One more piece was received, in order."""


class Damaged(msgspec.Struct, frozen=True, tag="damaged"):
    """The received content of that file was wrong, and was dropped. It must be sent from its beginning."""

    digest: bytes


class Shipped(msgspec.Struct, frozen=True, tag="shipped"):
    """The whole tree is in place."""

    directory: str
    """Root of the tree."""


class NotShipped(msgspec.Struct, frozen=True, tag="not-shipped"):
    """The tree cannot be created on this host. No more messages about it are accepted."""

    reason: str
    hint: str


Relay = Relayed | RelayCredit | RelayClosed
RelayToAgent = Relay | RelayedAgain
ToBranch = OpenBranch | BranchData | BranchCredit | BranchReady | CloseBranch | KillBranch
FromBranch = BranchData | BranchCredit | BranchEnded
Answer = TaskEnded | Looked | PortsOpened | ConnectTried | WitnessReady | WitnessesTried
ToFiles = Offer | Piece
FromFiles = Lacking | Received | Damaged | Shipped | NotShipped

ToAgent = (
    Start
    | Stop
    | Credit
    | End
    | SendSignal
    | Beat
    | Outlive
    | Task
    | Look
    | OpenPorts
    | TryConnect
    | BeWitness
    | AskWitnesses
    | RelayToAgent
    | ToBranch
    | ToFiles
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
    | AllEnded
    | Beat
    | Answer
    | RelayOpened
    | Relay
    | FromBranch
    | FromFiles
)
