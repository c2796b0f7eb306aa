"""The roster of a job that was not started by farandole's launcher, served by a child process of its rank 0.

`core.own_roster` starts it. It ends when its standard input ends. A process that rank 0 has forked may hold the other
end of that pipe and outlive rank 0, so this process watches rank 0 itself as well.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys

from farandole.base.wire.address import format_address
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.frame_stream import PipeEnd
from farandole.base.wire.frames import FRAME_LIMIT, Codec
from farandole.base.wire.rendezvous import FromServer, NotServed, Serve, Serving
from farandole.control.roster import fixed
from farandole.control.roster.service import RosterService


async def serve(order: Serve, control: int, channel: Channel, parent: int) -> None:
    """Serve a roster until the input or the parent process ends.

    Args:
        order: size, secret and addresses of the roster.
        control: file descriptor of the input.
        channel: channel for the answer.
        parent: process id of rank 0.
    """
    service = RosterService(fixed.FixedState((None,) * order.size), order.secret)
    answer = await _listen(service, order)
    channel.send(Codec[Serve](Serve).encode(answer))
    if isinstance(answer, Serving):
        await _end_of(control, parent)
    await service.close()


async def _listen(service: RosterService, order: Serve) -> FromServer:
    bound, missing = [], []
    for host, port in order.addresses:
        try:
            bound.append(await service.start(host, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                return NotServed(f"it cannot listen on {format_address(host, port)}: {os.strerror(error.errno or 0)}")
            missing.append(host)
    if bound:
        return Serving(tuple(bound))
    return NotServed(
        f"this machine does not have the address {' or '.join(missing)}. FARANDOLE_ROSTER must name the host on which "
        "rank 0 runs"
    )


async def _end_of(control: int, parent: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # Nothing more is written there: it becomes readable when it ends.
    loop.add_reader(control, ended.set)
    try:
        loop.add_reader(os.pidfd_open(parent), ended.set)
    except (OSError, AttributeError):
        pass  # An old kernel, a sandbox or another libc: only the end of the input is watched.
    if os.getppid() == parent:
        await ended.wait()


def main() -> None:
    """Serve the process that is connected to standard input and output."""
    parent = os.getppid()
    control = sys.stdin.fileno()
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Prints must not mix with the answer.
    channel = Channel(PipeEnd(control), PipeEnd(report), FRAME_LIMIT)
    try:
        order = Codec[Serve](Serve).decode(channel.receive())
    except ConnectionLost:
        return  # Rank 0 ended before it sent its order.
    asyncio.run(serve(order, control, channel, parent))


if __name__ == "__main__":
    main()
