"""The protocol of the launcher and its agents: frames over the agent's standard input and output.

No authentication is needed: no other process holds the ends of these pipes. Between hosts, ssh has authenticated both
sides.

The agent sends `Ready` first. A message with a `number` is a question; its answer carries the same number. The messages
about branches, connectivity, files and witnesses are in modules of their own, such as `branch_messages`; `ToAgent` and
`FromAgent` are the unions of all.

Output is under flow control. For each stream of each worker the agent sends at most `WINDOW` bytes ahead of what the
launcher has written; `Credit` allows more. So a slow reader costs a bounded amount of memory, and slows down only the
workers that print. The same holds for each relayed connection, in both directions; towards a worker, a frame of up to
4 MiB is not divided. It also holds for each branch, with a window of its own. For files, the launcher has a bounded
number of bytes in transit: the agent confirms each piece.

An agent on another host and its launcher send each other a `Beat` when there is nothing else to send.
"""

from __future__ import annotations

import msgspec

from farandole.control.agent.branch_messages import FromBranch, ToBranch
from farandole.control.agent.connectivity_messages import ConnectTried, OpenPorts, PortsOpened, TryConnect
from farandole.control.agent.file_messages import FromFiles, ToFiles
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessesTried, WitnessReady

# Precedes the first frame: the start-up files of a login may print text before it.
GREETING = b"\nfarandole agent: frames follow\n"

WINDOW = 256 * 1024

STDOUT = 1
STDERR = 2


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
    tuning: str = ""
    """File with the results of autotuning that a worker here will read; "": none."""


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


class RelayOpened(msgspec.Struct, frozen=True, tag="relay-opened"):
    """A process on this host has connected to the address of the roster."""

    link: int


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


Relay = Relayed | RelayCredit | RelayClosed
RelayToAgent = Relay | RelayedAgain
Answer = TaskEnded | Looked | PortsOpened | ConnectTried | WitnessReady | WitnessesTried

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
