"""Places in an MPI job for workers that a nursery forks, so that MPI worlds start as fast as others.

MPICH's mpirun starts a small program for each worker. A process belongs to the job by a few variables and one
descriptor, a socket to mpirun: the program sends them here, and waits until the worker is done.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

PEERS = Path(os.environ.get("FARANDOLE_PEERS") or Path(sys.prefix) / "peers")
MPICH = PEERS / "mpich"
SEAT_SECONDS = 60.0

_SEAT = """\
import json, os, socket, sys
variables = {name: value for name, value in os.environ.items() if name.startswith(("PMI", "MPI", "HYD"))}
descriptor = int(variables["PMI_FD"])
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [json.dumps(variables).encode()], [descriptor])
    os.close(descriptor)
    connection.recv(1)
"""


class Seat(NamedTuple):
    """One process's place in an MPI job.

    Attributes:
        environment: the variables that a worker needs for this place.
        descriptor: the socket, which the worker must have under the number in PMI_FD.
    """

    environment: Mapping[str, str]
    descriptor: int


class Seats:
    """The places of one MPI job, by rank. The test is skipped if MPICH is not installed.

    Args:
        size: the number of places.
        directory: the directory for a socket.
    """

    def __init__(self, size: int, directory: Path) -> None:
        if not (MPICH / "lib" / "libmpi_abi.so.1").exists():
            pytest.skip(f"no MPICH below {PEERS}: `make setup` installs it there")
        self._connections: list[socket.socket] = []
        path = str(directory / "seats")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(size)
            listener.settimeout(SEAT_SECONDS)
            command = [str(MPICH / "bin" / "mpirun"), "-disable-auto-cleanup", "-n", str(size)]
            self._process = subprocess.Popen(
                [*command, sys.executable, "-ISc", _SEAT, path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            seats = dict(self._take(listener) for _ in range(size))
        os.unlink(path)
        self.seats = [seats[rank] for rank in range(size)]

    def _take(self, listener: socket.socket) -> tuple[int, Seat]:
        connection, _ = listener.accept()
        connection.settimeout(SEAT_SECONDS)
        self._connections.append(connection)
        text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        variables = json.loads(text)
        library = str(MPICH / "lib" / "libmpi_abi.so.1")
        return int(variables["PMI_RANK"]), Seat({**variables, "FARANDOLE_MPI_LIBRARY": library}, descriptors[0])

    def close(self) -> None:
        """End the job, after its workers have ended."""
        for seat in self.seats:
            os.close(seat.descriptor)
        for connection in self._connections:
            connection.close()
        self._process.wait(SEAT_SECONDS)
