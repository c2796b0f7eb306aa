"""Sends a directory to the hosts of a job, and to each host only the files that it lacks.

`Shipment` is a state machine without I/O for one host: it receives the agent's messages and returns the messages for
the agent. `Shipping` drives the shipments of all hosts, and `ship` connects them to agents.
`farandole.control.agent.file_messages` has the messages.

Memory is bounded. A host has at most a window of bytes in transit, and the windows of all hosts together are bounded as
well; a piece that several hosts need at about the same time is read and compressed once.
"""

from __future__ import annotations

import asyncio
import functools
import os
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from farandole.control.agent.file_messages import (
    PIECE_BYTES,
    Entry,
    File,
    FromFiles,
    Lacking,
    Link,
    NotShipped,
    Offer,
    Piece,
    Received,
    Shipped,
    ToFiles,
)
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.background import Background
from farandole.control.launcher.ship.file_list import Manifest
from farandole.errors import SpecError

HOST_WINDOW = 4 * 1024 * 1024
ALL_WINDOWS = 64 * 1024 * 1024
"""Maximum numbers of bytes in transit to one host, and to all hosts together."""
# Seconds; longer than in a running job: on a network that is filled with files, heartbeats come late.
SILENCE_SECONDS = 20.0
_REMEMBERED_BYTES = 16 * 1024 * 1024
_SAMPLE_BYTES = 4096
_BATCH_ENTRIES = 1000

ReadPiece = Callable[[bytes, int], Piece]
"""Returns the piece of a file, given its digest and an offset in bytes."""


class PieceReader:
    """Reads pieces of a manifest's files, and compresses those that become smaller."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._remembered: OrderedDict[tuple[bytes, int], Piece] = OrderedDict()
        self._remembered_bytes = 0

    def __call__(self, digest: bytes, offset: int) -> Piece:
        """Return the piece that begins at `offset`, in bytes, of the file with that digest.

        Raises:
            SpecError: the file has changed since the manifest was made, or cannot be read.
        """
        key = digest, offset
        if key in self._remembered:
            self._remembered.move_to_end(key)
            return self._remembered[key]
        piece = _piece(digest, offset, self._read(self._manifest.files[digest], offset))
        self._remembered[key] = piece
        self._remembered_bytes += len(piece.data)
        while self._remembered_bytes > _REMEMBERED_BYTES:
            self._remembered_bytes -= len(self._remembered.popitem(last=False)[1].data)
        return piece

    def _read(self, file: File, offset: int) -> bytes:
        path = self._manifest.path_of(file)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                data = os.pread(fd, PIECE_BYTES, offset)
                found = os.fstat(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise SpecError(f"{os.fsdecode(file.path)} cannot be read any more: {error.strerror}") from None
        if (found.st_size, found.st_mtime_ns) != (file.size, file.modified_ns):
            raise changed(file)
        return data


def changed(file: File) -> SpecError:
    """Return the error about a file that has changed."""
    return SpecError(
        f"{os.fsdecode(file.path)} changed while it was being sent",
        "run again when nothing writes to it, or exclude it in .gitignore if the hosts do not need it",
    )


def _piece(digest: bytes, offset: int, data: bytes) -> Piece:
    # Incompressible data shows at its beginning; compressing all of it would cost more than sending it.
    sample = data[:_SAMPLE_BYTES]
    if len(zlib.compress(sample, 1)) < 0.9 * len(sample):
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return Piece(digest, offset, packed, True)
    return Piece(digest, offset, data, False)


class Shipment:
    """The files of a manifest that one host still needs.

    Args:
        manifest: the content to send.
        read: returns pieces of files.
        job: the job's id.
        window: maximum number of bytes in transit. One piece is always allowed.
        cache: the cache directory on the host; "" means the host's default.
    """

    def __init__(self, manifest: Manifest, read: ReadPiece, job: str, window: int, cache: str = "") -> None:
        self._manifest = manifest
        self._read = read
        self._window = window
        self._offers = _offers(manifest, job, cache)
        self._queue: deque[tuple[bytes, int]] = deque()
        """Digest and next offset of each missing file."""
        self._on_the_way: deque[tuple[int, int]] = deque()
        """For each piece in transit: bytes of the message, and bytes of the file."""
        self._way_bytes = 0
        self._all_offered = False
        self._sent_twice: set[bytes] = set()
        self.total = 0
        """Bytes that the host lacked at the beginning; known once all files were offered."""
        self.done = 0
        """Number of these bytes that it has received."""
        self.directory: str | None = None
        """The tree's root on the host, once the tree is complete."""

    def begin(self) -> list[ToFiles]:
        """Return the first messages for the agent."""
        return [next(self._offers)]

    def heard(self, message: FromFiles) -> list[ToFiles]:
        """Handle a message of the agent and return the answers.

        Raises:
            SpecError: this shipment has failed.
        """
        if isinstance(message, NotShipped):
            raise SpecError(message.reason, message.hint)
        if isinstance(message, Shipped):
            self.directory = message.directory
            self.done = self.total
            return []
        if isinstance(message, Lacking):
            self._lacks(message)
            offer = next(self._offers, None)
            if offer is not None:
                return [offer]
            self._all_offered = True
        elif isinstance(message, Received):
            wire_bytes, file_bytes = self._on_the_way.popleft()
            self._way_bytes -= wire_bytes
            self.done += file_bytes
        else:
            self._send_again(message.digest)
        return list(self._pieces()) if self._all_offered else []

    def _lacks(self, message: Lacking) -> None:
        for digest, have in message.files:
            size = self._manifest.files[digest].size
            self.total += size - have
            if have < size:
                self._queue.append((digest, have))

    def _send_again(self, digest: bytes) -> None:
        file = self._manifest.files[digest]
        if digest in self._sent_twice:
            # Its size and time have not changed; otherwise it would not have been sent.
            raise changed(file)
        self._sent_twice.add(digest)
        self._queue = deque(entry for entry in self._queue if entry[0] != digest)
        self._queue.appendleft((digest, 0))
        self.total += file.size

    def _pieces(self) -> Iterator[Piece]:
        while self._queue and (self._way_bytes < self._window or not self._on_the_way):
            digest, offset = self._queue.popleft()
            piece = self._read(digest, offset)
            size = self._manifest.files[digest].size
            end = min(size, offset + PIECE_BYTES)
            if end < size:
                self._queue.appendleft((digest, end))
            self._on_the_way.append((len(piece.data), end - offset))
            self._way_bytes += len(piece.data)
            yield piece


def _offers(manifest: Manifest, job: str, cache: str) -> Iterator[Offer]:
    batches = list(_batches(manifest.entries))
    for number, batch in enumerate(batches, 1):
        yield Offer(job, manifest.name, cache, batch, number == len(batches))


def _batches(entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, ...]]:
    """Split entries into batches whose messages are about as large as a piece."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry.path) + (len(entry.target) if isinstance(entry, Link) else 0)
        if len(batch) == _BATCH_ENTRIES or size > PIECE_BYTES // 2:
            yield tuple(batch)
            batch, size = [], 0
    if batch:
        yield tuple(batch)


# --- all hosts ---------------------------------------------------------------------------------------------------

SendMessage = Callable[[ToFiles], None]
Progress = Callable[[int, int], None]
"""Called with the numbers of bytes that have arrived, and of bytes to send, for all hosts together."""


class Shipping:
    """Sends a manifest to several hosts at once.

    Args:
        manifest: the content to send.
        hosts: for each host by name, a function that sends a message to its agent. Answers go to `heard`.
        job: the job's id.
        progress: called often, with the progress.
        cache: the cache directory on the hosts; "" means their default.
    """

    def __init__(
        self,
        manifest: Manifest,
        hosts: Mapping[str, SendMessage],
        job: str,
        progress: Progress = lambda done, total: None,
        cache: str = "",
    ) -> None:
        read = PieceReader(manifest)
        window = min(HOST_WINDOW, ALL_WINDOWS // max(1, len(hosts)))
        self._hosts = hosts
        self._shipments = {host: Shipment(manifest, read, job, window, cache) for host in hosts}
        self._progress = progress
        self._done = 0
        self._total = 0
        self._missing = set(hosts)
        """Hosts without the complete tree."""
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self) -> dict[str, str]:
        """Send everything, and return each host's directory once all hosts have the tree.

        Raises:
            SpecError: a host has failed, or a file has changed. Other hosts are not waited for.
        """
        for host, shipment in self._shipments.items():
            for message in shipment.begin():
                self._hosts[host](message)
        if self._shipments:
            await self._finished
        return {host: shipment.directory or "" for host, shipment in self._shipments.items()}

    def heard(self, host: str, message: FromFiles) -> None:
        """Handle a message of a host's agent."""
        if self._finished.done():
            return  # This host has failed; the others do not know yet.
        shipment = self._shipments[host]
        before = shipment.done, shipment.total
        try:
            for answer in shipment.heard(message):
                self._hosts[host](answer)
        except SpecError as error:
            told = f"{host}: {error.message}" if isinstance(message, NotShipped) else error.message
            self._finished.set_exception(SpecError(f"the directory could not be sent: {told}", error.hint))
            return
        self._done += shipment.done - before[0]
        self._total += shipment.total - before[1]
        self._progress(self._done, self._total)
        if shipment.directory is not None:
            self._missing.discard(host)
        if not self._missing:
            self._finished.set_result(None)

    def lost(self, host: str, why: str) -> None:
        """Handle the loss of a host's agent."""
        if not self._finished.done() and host in self._missing:
            self._finished.set_exception(SpecError(f"the directory could not be sent: {host}: {why}"))


async def ship(
    manifest: Manifest,
    agents: Sequence[AgentClient],
    job: str,
    progress: Progress = lambda done, total: None,
    cache: str = "",
) -> dict[str, str]:
    """Send a manifest to the hosts of agents, and return the root of the tree on each host, by label.

    Args:
        manifest: the content to send.
        agents: the agents of the hosts; they are ready, and no worker runs there yet.
        job: the job's id.
        progress: called often, with the progress.
        cache: the cache directory on the hosts; "" means their default.

    Raises:
        SpecError: a host has failed, or was lost, or a file has changed.
    """
    shipping = Shipping(manifest, {agent.host.label: agent.send for agent in agents}, job, progress, cache)
    watching = Background()
    for agent in agents:
        agent.on_file_messages(functools.partial(shipping.heard, agent.host.label))
        watching.spawn(_notice_loss(agent, shipping))
        if not agent.local:
            watching.spawn(agent.watch(SILENCE_SECONDS))
    try:
        return await shipping.send()
    finally:
        await watching.end()
        for agent in agents:
            if not agent.local:
                agent.pause()  # The watch that follows measures silence from now on.


async def _notice_loss(agent: AgentClient, shipping: Shipping) -> None:
    shipping.lost(agent.host.label, str(await agent.lost()))
