"""A real terminal around the real launcher: the output for people, and the effect of Ctrl-C."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from screens import FakeTerminal

COLUMNS, LINES = 100, 30

# Makes the terminal on its standard input that of its session, so that Ctrl-C comes from there, and runs the rest.
LEADER = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"

# The same, but in the background, as a shell does it for a command with &.
BACKGROUND = """
import fcntl, os, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.exit(subprocess.run(sys.argv[1:], preexec_fn=os.setpgrp).returncode)
"""

PREAMBLE = """
import os, signal, sys, time
from farandole.base.wire.roster_client import RosterClient

rank = int(os.environ["FARANDOLE_RANK"])
here = os.environ["TEST_DIRECTORY"]

def wait_for(name):
    deadline = time.monotonic() + 100
    while not os.path.exists(os.path.join(here, name)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


class Job:
    """A `farandole run` on its own terminal."""

    def __init__(
        self, leader: str, command: list[str], directory: Path, environment: dict[str, str], piped: bool
    ) -> None:
        self._directory = directory
        self._leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", leader, sys.executable, *command],
            stdin=follower,
            stdout=subprocess.PIPE if piped else follower,
            stderr=follower,
            env=environment,
            start_new_session=True,
        )
        os.close(follower)
        self.written = b""
        self.terminal = FakeTerminal(COLUMNS)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    @property
    def rows(self) -> list[str]:
        return self.terminal.rows

    def until(self, fact: Callable[[list[str]], object], seconds: float = 60) -> None:
        """Take what is written until a fact about the rows holds."""
        deadline = time.monotonic() + seconds
        while not fact(self.rows):
            assert time.monotonic() < deadline, "\n".join(["waited in vain; the terminal:", *self.rows])
            assert self._take(0.05), "\n".join(["the job has ended; the terminal:", *self.rows])

    def go(self, name: str) -> None:
        """Let workers that wait for this go on."""
        (self._directory / name).touch()

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def finish(self, seconds: float = 60) -> tuple[int, str]:
        """Wait for the end; return the exit code, and standard output if it is a pipe."""
        deadline = time.monotonic() + seconds
        while self._take(0.05):
            assert time.monotonic() < deadline, "\n".join(["it does not end; the terminal:", *self.rows])
        out = b"" if self.process.stdout is None else self.process.stdout.read()
        return self.process.wait(seconds), out.decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._leader)

    def _take(self, seconds: float) -> bool:
        """Read what has been written; return False if no process has the terminal open any more."""
        if not select.select([self._leader], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._leader, 65536)
        except OSError:  # EIO: its other end is closed.
            return False
        self.written += data
        self.terminal.feed(self._decoder.decode(data))
        return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a worker script through the launcher on a terminal."""
    jobs: list[Job] = []

    def start(
        script: str, workers: int, *options: str, leader: str = LEADER, piped: bool = False, **variables: str
    ) -> Job:
        path = tmp_path / "worker.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment |= {"TERM": "xterm-256color", "TEST_DIRECTORY": str(tmp_path), **variables}
        command = ["-m", "farandole", "run", "-np", str(workers), *options, sys.executable, str(path)]
        jobs.append(Job(leader, command, tmp_path, environment, piped))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def without_notes(rows: list[str]) -> list[str]:
    return [row for row in rows if not row.startswith("note: ")]


def last(rows: list[str]) -> str:
    return rows[-1] if rows else ""


def test_status_line_appears_and_disappears(start: Callable[..., Job]) -> None:
    job = start("print('hello'); wait_for('go')", 2)
    job.until(lambda rows: last(rows) == "2/2 up" and sum("hello" in row for row in rows) == 2)
    job.go("go")
    assert job.finish()[0] == 0
    assert sorted(without_notes(job.rows)) == ["[0]<stdout>:hello", "[1]<stdout>:hello"]


def test_status_line_can_be_disabled(start: Callable[..., Job]) -> None:
    job = start("print('hello')", 1, "--no-status")
    assert job.finish()[0] == 0
    assert b" up" not in job.written and b"hello" in job.written


def test_status_line_shows_steps_and_slowest_rank(start: Callable[..., Job]) -> None:
    script = """
    assert os.environ["FARANDOLE_PROGRESS"] == "1"
    secret = bytes.fromhex(os.environ["FARANDOLE_SECRET"])
    with RosterClient.connect(os.environ["FARANDOLE_ROSTER"], secret, worker=rank) as client:
        begin = time.monotonic()
        while not os.path.exists(os.path.join(here, "go")):
            passed = time.monotonic() - begin
            client.report_progress(int(passed * 10), passed * (0.0 if rank == 1 else 0.5))
            time.sleep(0.2)
    """
    job = start(script, 2)
    job.until(lambda rows: "steps/s" in last(rows) and "slowest rank 1, others waited" in last(rows))
    job.go("go")
    assert job.finish()[0] == 0
    assert "steps/s" not in "\n".join(job.rows)


def test_progress_bars_of_two_workers_are_stacked(start: Callable[..., Job]) -> None:
    script = """
    for number in range(20):
        sys.stderr.write(f"\\r{5 * number:3}% {'#' * (20 - number if rank else number)}")
        time.sleep(0.01)
    sys.stderr.write("\\r 99% of it\\r")
    print("one line")
    wait_for("go")
    sys.stderr.write("100%\\n")
    """
    job = start(script, 2)
    bottom = ["[0]<stderr>: 99% of it", "[1]<stderr>: 99% of it", "2/2 up"]
    job.until(lambda rows: rows[-3:] == bottom and sum("one line" in row for row in rows) == 2)
    job.go("go")
    assert job.finish()[0] == 0
    assert sorted(without_notes(job.rows)) == [
        "[0]<stderr>:100%",
        "[0]<stdout>:one line",
        "[1]<stderr>:100%",
        "[1]<stdout>:one line",
    ]


def test_colours_are_for_terminals(start: Callable[..., Job]) -> None:
    script = "print('out'); print('err', file=sys.stderr)"
    job = start(script, 1, piped=True)
    assert job.finish() == (0, "[0]<stdout>:out\n")
    assert b"\x1b[38;5;32m[0]<stderr>:\x1b[39merr" in job.written


@pytest.mark.parametrize(
    ("options", "variables", "colored"),
    [
        ((), {}, True),
        (("--color", "never"), {}, False),
        ((), {"NO_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
    ],
)
def test_colour_options_are_respected(
    start: Callable[..., Job], options: tuple[str, ...], variables: dict[str, str], colored: bool
) -> None:
    job = start("print('out')", 1, *options, **variables)
    assert job.finish()[0] == 0
    assert (b"\x1b[38;5;" in job.written) == colored
    assert without_notes(job.rows) == ["[0]<stdout>:out"]


def test_dumb_terminal_gets_lines_only(start: Callable[..., Job]) -> None:
    job = start("print('out')", 1, TERM="dumb")
    assert job.finish()[0] == 0
    assert b"\x1b" not in job.written and b" up" not in job.written
    assert without_notes(job.rows) == ["[0]<stdout>:out"]


def test_background_job_draws_nothing(start: Callable[..., Job]) -> None:
    job = start("print('out')", 1, leader=BACKGROUND)
    assert job.finish()[0] == 0
    assert b" up" not in job.written and b"\x1b[J" not in job.written
    assert without_notes(job.rows) == ["[0]<stdout>:out"]


def test_ctrl_c_ends_job_and_restores_terminal(start: Callable[..., Job]) -> None:
    script = """
    def bye(*_):
        print("cleaned up")
        sys.exit(0)
    signal.signal(signal.SIGTERM, bye)
    sys.stderr.write(" 10%\\r")
    time.sleep(60)
    """
    job = start(script, 2)
    job.until(lambda rows: rows[-3:] == ["[0]<stderr>: 10%", "[1]<stderr>: 10%", "2/2 up"])
    job.type("\x03")
    assert job.finish()[0] == 130
    rows = "\n".join(job.rows)
    assert "Ctrl-C: ending 2 workers" in rows
    assert rows.count("cleaned up") == rows.count(" 10%") == 2
    assert "2/2 up" not in rows


def test_failure_report_is_separate_from_status_line(start: Callable[..., Job], tmp_path: Path) -> None:
    script = "sys.stderr.write(' 10%\\r')\nif rank: raise ValueError('boom')\ntime.sleep(60)"
    job = start(script, 2, "--output-dir", str(tmp_path / "logs"))
    assert job.finish()[0] == 1
    begin = next(number for number, row in enumerate(job.rows) if row.startswith("error: rank 1 on host "))
    assert "(ValueError: boom)" in " ".join(row.strip() for row in job.rows[begin : begin + 3])
    assert not any(" up" in row or "10%" in row for row in job.rows[begin:])
    told = json.loads((tmp_path / "logs" / "rank.1" / "error.json").read_text())["message"]
    assert told["errorCode"] == 1 and "ValueError: boom" in told["extraInfo"]["py_callstack"]
    assert not (tmp_path / "logs" / "rank.0" / "error.json").exists()


def test_selected_ranks_are_shown_and_all_are_stored(start: Callable[..., Job], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    job = start("print('rank', rank)", 3, "--tee", "--output-dir", str(logs), "--only-rank", "0,2", piped=True)
    code, out = job.finish()
    assert (code, sorted(out.splitlines())) == (0, ["[0]<stdout>:rank 0", "[2]<stdout>:rank 2"])
    assert (logs / "rank.1" / "stdout").read_text() == "rank 1\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only-rank", "2"), "error: --only-rank: the job has no rank 2"),
        (("--only-rank", "two"), "error: --only-rank two: 'two' is not a rank"),
        (("--tee",), "error: --tee: the output directory is missing"),
    ],
)
def test_invalid_output_options_are_refused(start: Callable[..., Job], options: tuple[str, ...], message: str) -> None:
    job = start("", 2, *options)
    assert job.finish()[0] == 2
    assert message in job.rows and last(job.rows).startswith("hint: ")


def test_closed_terminal_ends_job(start: Callable[..., Job]) -> None:
    job = start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)", 1)
    job.until(lambda rows: last(rows) == "1/1 up")
    os.kill(job.process.pid, signal.SIGHUP)
    assert job.finish()[0] == 128 + signal.SIGHUP
