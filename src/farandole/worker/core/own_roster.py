"""The roster that rank 0 serves when no launcher does: a child process, `python -m farandole.control.roster.serve`.

It is a separate process, so that it answers while Python computes here. It is started by name, because this package
knows only the roster's messages. It reads its orders from standard input, so no secret is on a command line, and it
ends when that input, or this process, ends in any way.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from farandole.base.installed import own_environment
from farandole.base.wire.channel import Channel
from farandole.base.wire.errors import ConnectionLost, WireTimeout
from farandole.base.wire.frame_stream import PipeEnd
from farandole.base.wire.frames import FRAME_LIMIT, Codec
from farandole.base.wire.rendezvous import FromServer, NotServed, Serve
from farandole.errors import StartError

ANSWER_SECONDS = 30.0
"""Seconds to wait: Python may take long to start if hundreds of interpreters start from one file server."""
END_SECONDS = 5.0


class OwnRoster:
    """The child process, and the addresses that it listens on.

    Attributes:
        addresses: the addresses, each as `host:port`, separated by commas.
    """

    def __init__(self, size: int, secret: bytes, addresses: Sequence[tuple[str, int]]) -> None:
        """Start the child and wait until it listens.

        Args:
            size: number of workers of the job.
            secret: the job's secret, which workers must prove that they have.
            addresses: numeric addresses of this machine, with ports; port 0: any free port. An address that this
                machine does not have is skipped if there are others.

        Raises:
            StartError: it cannot listen there, or cannot be started.
        """
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "farandole.control.roster.serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # A Ctrl-C is meant for the workers, which still have messages for it.
                cwd="/",  # python -m looks for modules here first, and must not find the user's.
                env=own_environment(),
            )
        except OSError as error:
            raise StartError(f"rank 0 cannot start {sys.executable} to serve the roster: {error}") from error
        try:
            answer = self._ask(Serve(size, secret, tuple(addresses)))
        except BaseException:
            self.close()
            raise
        if isinstance(answer, NotServed):
            self.close()
            raise StartError(f"rank 0 cannot serve the roster: {answer.reason}")
        self.addresses = ",".join(answer.addresses)

    def close(self) -> None:
        """End the child. Workers that still wait for it get an error."""
        self._close_pipes()
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Drop the child process in a forked child of this process, which does not own it."""
        self._close_pipes()
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _ask(self, order: Serve) -> FromServer:
        assert self._process.stdin is not None and self._process.stdout is not None
        codec: Codec[FromServer] = Codec(FromServer)
        channel = Channel(PipeEnd(self._process.stdout.fileno()), PipeEnd(self._process.stdin.fileno()), FRAME_LIMIT)
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            channel.send(codec.encode(order), deadline)
            return codec.decode(channel.receive(deadline))
        except WireTimeout:
            raise StartError(
                f"the process that rank 0 started to serve the roster did not answer in {ANSWER_SECONDS:g} s"
            ) from None
        except ConnectionLost:
            raise StartError(
                "rank 0 started a process to serve the roster, which ended at once; what it wrote to standard "
                "error says why"
            ) from None
