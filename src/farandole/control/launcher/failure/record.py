"""Records of how workers ended, and the choice of the failure that came first.

When one worker dies, the others also fail a moment later, with long messages; the user wants to read about the one that
died first. Every worker's end is recorded with the time when the launcher learned of it, and `first_failure` chooses.
The workers of a lost host are lost with it; errors of other workers about them are only consequences.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

TAIL_BYTES = 64 * 1024
"""The number of bytes at the end of a worker's standard error that are searched for its last words."""
MOST_LINES = 10
"""Maximum number of its last lines that a report shows."""

# Signals that a process causes by itself; they need not come from anyone else.
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}

_TRACEBACK = re.compile(r"^[ +|]*(?:Exception Group )?Traceback \(most recent call last\):$")
# A script with a syntax error has no traceback: the place comes first, then the line and the error.
_SYNTAX_ERROR = re.compile(r'^  File ".+", line \d+$')
_ERROR_LINE = re.compile(r"^[\w.]+(?::|$)")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_MESSAGE_LINES = 30
# The prefix that torch.distributed puts before every line of a traceback.
_TORCHS_PREFIX = re.compile(r"^\[rank[0-9]+\]: ?")


@dataclass
class WorkerRecord:
    """Everything that the launcher knows about one worker. Times are seconds on the launcher's monotonic clock."""

    rank: int
    not_started: str = ""
    """The operating system's reason for not starting it."""
    exit_code: int | None = None
    """Its exit code, or minus the signal's number if a signal ended it; None while it runs."""
    host_lost: str = ""
    """How the loss of its host was noticed, such as `nothing was heard from it for 1.8 s`; "" without a loss."""
    exit_time: float = 0.0
    """When the launcher learned of its end; for a host that fell silent, when the last message from it arrived."""
    out_of_memory: str = ""
    """The kernel's message that it killed the worker for lack of memory (see `farandole.control.agent.oom`); "": no
    message."""
    report_time: float | None = None
    """When it reported its failure through the roster; None if it did not."""
    exception: str = ""
    traceback: str = ""
    consequence_of: int | None = None
    error_file: bytes = b""
    """Its own error file, parsed (see `farandole.control.launcher.failure.error_file`)."""
    stderr_tail: bytearray = field(default_factory=bytearray)

    def heard(self, data: bytes) -> None:
        """Append to the end of its standard error."""
        self.stderr_tail += data
        del self.stderr_tail[:-TAIL_BYTES]

    @property
    def ended(self) -> bool:
        """Whether its process does not exist or has ended."""
        return bool(self.not_started or self.host_lost) or self.exit_code is not None

    @property
    def failed(self) -> bool:
        """Whether it ended in any way other than with exit code 0."""
        return bool(self.not_started or self.host_lost) or self.exit_code not in (None, 0)

    @property
    def failure_time(self) -> float:
        """When the launcher first learned of its failure."""
        return self.exit_time if self.report_time is None else min(self.exit_time, self.report_time)

    def failed_by_itself(self, ended_at: float) -> bool:
        """Whether it failed before the launcher ended all workers at `ended_at`, or not because of that."""
        if not self.failed:
            return False
        if self.failure_time <= ended_at:
            return True
        return self.exit_code is not None and -self.exit_code in CRASHES


def first_failure(records: Sequence[WorkerRecord], ended_at: float) -> WorkerRecord | None:
    """Return the worker whose failure explains the others'.

    A worker that the launcher ended is never chosen. A failure that, by its own message, is only the consequence of
    another rank's loss or departure is chosen only if there is no other.

    Args:
        records: the records of all workers.
        ended_at: when the launcher began to end the remaining workers.
    """
    failed = [record for record in records if record.failed_by_itself(ended_at)]
    roots = [record for record in failed if record.consequence_of is None]
    return min(roots or failed, key=lambda record: record.failure_time, default=None)


def shell_code(exit_code: int) -> int:
    """Return the exit code that a shell would give: 128 + the signal's number for a death by signal."""
    return 128 - exit_code if exit_code < 0 else exit_code


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_it_ended(record: WorkerRecord) -> str:
    """Return in a few words how a worker ended, such as `was killed by SIGKILL`."""
    if record.not_started:
        return f"could not be started: {record.not_started}"
    if record.host_lost:
        return f"was lost with its host: {record.host_lost}"
    if record.exit_code is None:
        return "is still running"
    if record.exit_code < 0:
        how = f"was killed by {signal_name(-record.exit_code)}"
        return f"{how}; {record.out_of_memory}" if record.out_of_memory else how
    return f"exited with code {record.exit_code}"


def find_traceback(tail: bytes) -> str:
    """Return the last Python traceback in a worker's standard error, with those chained to it; "" if there is none.

    Example:
        >>> print(find_traceback(b"noise\\nTraceback (most recent call last):\\n  File ...\\nValueError: boom\\n"))
        Traceback (most recent call last):
          File ...
        ValueError: boom
    """
    lines = _lines(tail)
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.match(line)]
    if not starts:
        return _syntax_error(lines)
    first = last = starts.pop()
    while starts and any(line in _CHAINED for line in lines[starts[-1] : first]):
        first = starts.pop()
    return "\n".join(lines[first : _end_of_traceback(lines, last)])


def _syntax_error(lines: Sequence[str]) -> str:
    """Return Python's report of a syntax error; "" if there is none."""
    for start in (number for number, line in enumerate(lines) if _SYNTAX_ERROR.match(line)):
        end = next((each for each in range(start, len(lines)) if not lines[each].startswith(" ")), len(lines))
        if end < len(lines) and re.match(r"(Syntax|Indentation|Tab)Error\b", lines[end]):
            return "\n".join(lines[start : end + 1])
    return ""


def error_line(traceback: str) -> str:
    """Return the line of a traceback that names the last exception; "" if there is none.

    Example:
        >>> error_line("\\n".join(["Traceback (most recent call last):", "  File ...", "ValueError: boom", "more"]))
        'ValueError: boom'
    """
    lines = traceback.splitlines()
    places = [number for number, line in enumerate(lines) if line.startswith(" ")]
    following = lines[places[-1] + 1 :] if places else lines
    return next((line for line in following if _ERROR_LINE.match(line)), "")


def last_lines(tail: bytes) -> list[str]:
    """Return the last lines that are not empty, at most `MOST_LINES`."""
    return [line for line in _lines(tail) if line.strip()][-MOST_LINES:]


def _lines(tail: bytes) -> list[str]:
    lines = re.split(r"\r\n|\n|\r", tail.decode("utf-8", "replace"))
    return [_TORCHS_PREFIX.sub("", line) for line in lines]


def _end_of_traceback(lines: list[str], start: int) -> int:
    """Return the index after the last line of the exception's message, which may have several lines."""
    end = start + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    limit = min(len(lines), end + _MESSAGE_LINES)
    while end < limit and lines[end].strip():
        end += 1
    return end
