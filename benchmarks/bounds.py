"""The machine's own limits, measured beside everything else: copying between arenas, and streaming between hosts."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import threading
from typing import Any

# Where a neighbour's arena is mapped from; a multiple of the largest page it may be made of.
_GRAIN = 2 << 20
_PIECE = 1 << 20


def make_copy(engine: Any, hvd: Any, size: int) -> Any:
    """Return a call that copies `size` bytes into this worker's arena, from the next worker's where it can be reached.

    A direct allreduce of two workers moves the same bytes: each reads half of both arenas, and writes half of both.
    """
    own, target = engine.allocate(size), engine.allocate(size)
    if own is None or target is None:
        raise MemoryError("the arena is full; give it more with FARANDOLE_ARENA_BYTES")
    for block in (own, target):
        ctypes.memset(block.address, 1, size)
    places = hvd.allgather_object(_place_of(own.address))
    neighbour = _map(places[(hvd.rank() + 1) % hvd.size()], size)
    # If one worker cannot reach its neighbour's arena, all copy from their own, because their times are compared.
    reached = all(hvd.allgather_object(neighbour is not None))
    source = own.address
    if reached and neighbour is not None:
        source = neighbour[0]

    def call() -> None:
        ctypes.memmove(target.address, source, size)

    call.note = "from the next worker's arena" if reached else "from the worker's own arena"  # type: ignore[attr-defined]
    call.kept = own, neighbour  # type: ignore[attr-defined]
    return call


def _place_of(address: int) -> tuple[int, int, int] | None:
    """Return this process, its descriptor of the file that lies at an address, and the offset there."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, _, inode, *_ = line.split()
            first, last = (int(bound, 16) for bound in span.split("-"))
            if first <= address < last:
                fd = _descriptor_of(int(inode))
                return None if fd is None else (os.getpid(), fd, int(offset, 16) + address - first)
    return None


def _descriptor_of(inode: int) -> int | None:
    for name in os.listdir("/proc/self/fd"):
        try:
            if inode and os.stat(f"/proc/self/fd/{name}").st_ino == inode:
                return int(name)
        except OSError:
            continue  # The descriptor of the listing itself.
    return None


def _map(place: tuple[int, int, int] | None, size: int) -> tuple[int, Any] | None:
    """Map another process's memory; return its address here and what keeps it mapped, or None on failure."""
    if place is None:
        return None
    process, fd, offset = place
    begin = offset // _GRAIN * _GRAIN
    try:
        opened = os.open(f"/proc/{process}/fd/{fd}", os.O_RDWR)
        try:
            mapping = mmap.mmap(opened, offset - begin + size, offset=begin)
        finally:
            os.close(opened)
    except (OSError, ValueError):
        return None
    view = (ctypes.c_char * len(mapping)).from_buffer(mapping)
    return ctypes.addressof(view) + offset - begin, (view, mapping)


class Stream:
    """A plain TCP connection from each host to the next, in a ring; all hosts send at the same time.

    Args:
        hosts: an address of each host.
        host: the index of this worker's host.
        local_rank: this worker's rank on its host. Only rank 0 streams.
        hvd: the module whose barrier synchronizes the workers.
    """

    def __init__(self, hosts: list[str], host: int, local_rank: int, hvd: Any) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        listener = socket.create_server((hosts[host], 0)) if local_rank == 0 else None
        ports = hvd.allgather_object(listener.getsockname()[1] if listener else None)
        if listener:
            following = (host + 1) % len(hosts)
            to_next = socket.create_connection((hosts[following], ports[following * len(ports) // len(hosts)]))
            from_last, _ = listener.accept()
            listener.close()
            self._sockets = to_next, from_last

    def make_call(self, size: int) -> Any:
        """Return a call that sends `size` bytes to the next host, and receives as many from the previous one."""
        if self._sockets is None:
            return lambda: None
        to_next, from_last = self._sockets
        outgoing, incoming = memoryview(bytearray(min(size, _PIECE))), memoryview(bytearray(min(size, _PIECE)))

        def send() -> None:
            left = size
            while left:
                left -= to_next.send(outgoing[: min(left, len(outgoing))])

        def call() -> None:
            sender = threading.Thread(target=send)
            sender.start()
            left = size
            while left:
                received = from_last.recv_into(incoming, min(left, len(incoming)))
                if not received:
                    raise ConnectionError("the host before this one has closed the stream")
                left -= received
            sender.join()

        return call
