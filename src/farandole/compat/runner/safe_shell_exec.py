"""`horovod.runner.common.util.safe_shell_exec`: a shell command whose processes end with it, and with this one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, TextIO

from farandole.base.installed import PACKAGE_FOLDER
from farandole.control.launcher.failure.record import shell_code
from farandole.control.launcher.output.lines import LineSplitter

GRACEFUL_TERMINATION_TIME_S = 5
_LOOK_SECONDS = 0.05
# The environment is the command's, so the package is found by its place, and no variable changes what Python does.
_GUARD = (
    f"import sys; sys.path.append({os.path.dirname(PACKAGE_FOLDER)!r}); "
    "from farandole.control.agent.guarded_shell import main; sys.exit(main())"
)


def execute(
    command: str,
    env: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    index: int | None = None,
    events: Sequence[threading.Event] | None = None,
    prefix_output_with_timestamp: bool = False,
) -> int:
    """Run a shell command to its end and return its exit code, as a shell would.

    Args:
        command: the command for `/bin/sh`.
        env: its environment; this process's by default.
        stdout: the stream for its standard output; this process's by default.
        stderr: the same for standard error.
        index: if it is not None, every line begins with `[index]<stdout>:` or `[index]<stderr>:`.
        events: if one of them is set, the command is ended: by SIGTERM and, five seconds later, SIGKILL.
        prefix_output_with_timestamp: whether each line's prefix begins with the time.
    """
    # The reading end goes to the process that runs the command; it ends the command when the writing end is closed, and
    # the kernel closes that when this process is killed.
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _GUARD, str(reader), str(GRACEFUL_TERMINATION_TIME_S), command],
            env=None if env is None else dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # So that a read returns what there is.
            start_new_session=True,
            pass_fds=[reader],
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    copies = [
        _copy_in_thread(process.stdout, stdout or sys.stdout, "stdout", index, prefix_output_with_timestamp),
        _copy_in_thread(process.stderr, stderr or sys.stderr, "stderr", index, prefix_output_with_timestamp),
    ]
    try:
        _wait(process, events or ())
    finally:
        os.close(writer)
        process.wait()
    for copy in copies:
        copy.join()
    return shell_code(process.returncode)


def prefix_connection(
    src_connection: Connection,
    dst_stream: TextIO,
    prefix: str | None,
    index: int | None,
    prefix_output_with_timestamp: bool,
) -> None:
    """Copy text from a connection to a stream, line by line, until its other end is closed.

    Args:
        src_connection: a stream of UTF-8. A line ends with a newline or a carriage return.
        dst_stream: gets whole lines at once, each beginning with `[index]<prefix>:`.
        prefix: the stream's name; None: lines are not changed.
        index: the worker's number; None: lines are not changed.
        prefix_output_with_timestamp: whether the prefix begins with the time.
    """
    with os.fdopen(os.dup(src_connection.fileno()), "rb", buffering=0) as source:
        _copy(source, dst_stream, prefix, index, prefix_output_with_timestamp)


def _now() -> str:
    return time.asctime(time.localtime(time.time()))


def _copy(source: IO[bytes], destination: TextIO, prefix: str | None, index: int | None, timestamps: bool) -> None:
    plain = prefix is None or index is None
    stamp: Callable[[], str] | None = _now if timestamps and not plain else None
    splitter = LineSplitter("" if plain else f"[{index}]<{prefix}>:", stamp)
    while data := source.read(io.DEFAULT_BUFFER_SIZE):
        _write(destination, "".join(splitter.feed(data)))
    # A last line without an end stays without one.
    _write(destination, "".join(splitter.flush()).removesuffix("\n"))


def _write(destination: TextIO, lines: str) -> None:
    if lines:
        destination.write(lines)
        destination.flush()


def _copy_in_thread(
    source: IO[bytes] | None, destination: TextIO, prefix: str, index: int | None, timestamps: bool
) -> threading.Thread:
    assert source is not None

    def copy() -> None:
        with source:
            _copy(source, destination, prefix, index, timestamps)

    thread = threading.Thread(target=copy, name=f"safe_shell_exec-{prefix}", daemon=True)
    thread.start()
    return thread


def _wait(process: subprocess.Popen[bytes], events: Sequence[threading.Event]) -> None:
    """Wait until the process has ended or an event is set."""
    while not any(event.is_set() for event in events):
        try:
            process.wait(_LOOK_SECONDS if events else None)
            return
        except subprocess.TimeoutExpired:
            continue
