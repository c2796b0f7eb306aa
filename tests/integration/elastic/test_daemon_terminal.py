"""Jobs that outlive their client, on a terminal: the status line, Ctrl-C, Ctrl-Z, and a closed terminal."""

from __future__ import annotations

import codecs
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from daemon_bench import COUNTING, Bench
from screens import FakeTerminal
from waiting import until

COLUMNS, LINES = 100, 30

# Makes the terminal on its standard input that of its session, and runs the rest.
LEADER = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A terminal with a shell-like session on it, in which a client runs."""

    def __init__(self, bench: Bench, *words: str) -> None:
        self._leader, follower = os.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEADER, *bench.command(*words)],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env=bench.environment,
            start_new_session=True,
        )
        os.close(follower)
        self._screen = FakeTerminal(COLUMNS)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_read = False
        """Whether all is read that was ever written: nobody has the terminal open any more."""

    @property
    def rows(self) -> list[str]:
        return self._screen.rows

    def until(self, fact: Callable[[list[str]], object], seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not fact(self.rows):
            assert time.monotonic() < deadline, "\n".join(["waited in vain; the terminal:", *self.rows])
            self._take()

    def type(self, text: str) -> None:
        os.write(self._leader, text.encode())

    def ends(self, seconds: float = 30) -> int:
        self.until(lambda rows: self.process.poll() is not None, seconds)
        self.until(lambda rows: self._is_read, seconds)
        return self.process.returncode

    def hang_up(self) -> None:
        os.close(self._leader)

    def _take(self) -> None:
        if select.select([self._leader], [], [], 0.05)[0]:
            try:
                self._screen.feed(self._decoder.decode(os.read(self._leader, 65536)))
            except OSError:
                self._is_read = True
                time.sleep(0.05)


def state(pid: int) -> str:
    return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]


def test_terminal_has_status_line_and_ctrl_c(bench: Bench) -> None:
    terminal = Terminal(bench, "run", "--job", "test", "-np", "2", *bench.worker(COUNTING))
    terminal.until(lambda rows: rows[-1:] == ["2/2 up"] and sum("begun" in row for row in rows) == 2)
    terminal.type("\x03")
    assert terminal.ends() == 130
    assert "farandole: Ctrl-C: ending 2 workers; repeat to kill them" in terminal.rows
    assert "2/2 up" not in terminal.rows
    terminal.hang_up()
    bench.nothing_is_left()


def test_closed_terminal_does_not_end_job(bench: Bench) -> None:
    terminal = Terminal(bench, "run", "--job", "test", "-np", "1", *bench.worker(COUNTING))
    terminal.until(lambda rows: rows[-1:] == ["1/1 up"] and any("begun" in row for row in rows))
    terminal.hang_up()
    terminal.process.wait(30)
    bench.go("one")
    until(lambda: "[0]<stdout>:one\n" in bench.log_of(), "the log has it")
    another = Terminal(bench, "run", "--attach", "test")
    another.until(lambda rows: rows[-1:] == ["1/1 up"] and any("one" in row for row in rows))
    assert [row for row in another.rows if row.startswith("[0]")] == ["[0]<stdout>:begun", "[0]<stdout>:one"]
    bench.go("two")
    assert another.ends() == 7
    assert "1/1 up" not in another.rows
    another.hang_up()
    bench.nothing_is_left()


def test_ctrl_z_stops_client_but_not_job(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    client.process.send_signal(signal.SIGTSTP)
    until(lambda: state(client.process.pid) == "T", "the client is stopped")
    bench.go("one")
    until(lambda: "[0]<stdout>:one\n" in bench.log_of(), "the log has it")
    assert "one" not in client.text
    client.process.send_signal(signal.SIGCONT)
    client.shows("[0]<stdout>:one")
    bench.go("two")
    assert client.ends() == 7
    assert client.text.count("[0]<stdout>:") == 3
    bench.nothing_is_left()


def test_end_of_job_is_shown_to_stopped_client_later(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    client.process.send_signal(signal.SIGTSTP)
    until(lambda: state(client.process.pid) == "T", "the client is stopped")
    bench.go("one")
    bench.go("two")
    until((bench.jobs / "test" / "ended.json").exists, "it has ended")
    client.process.send_signal(signal.SIGCONT)
    assert client.ends() == 7
    assert "[0]<stdout>:two\n" in client.text and "it exited with code 7" in client.text
    bench.nothing_is_left()


def test_stopped_client_can_be_replaced(bench: Bench) -> None:
    client = bench.run(COUNTING)
    client.shows("begun")
    client.process.send_signal(signal.SIGTSTP)
    until(lambda: state(client.process.pid) == "T", "the client is stopped")
    another = bench.start("run", "--attach", "test")
    another.shows("begun")
    client.process.send_signal(signal.SIGCONT)
    assert client.ends() == 1
    assert client.text.endswith("farandole: job test is now shown elsewhere\n")
    bench.go("one")
    bench.go("two")
    assert another.ends() == 7
    bench.nothing_is_left()
