"""The output of real workers through the real launcher: files, slow readers, and readers that are gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.integration.launcher.conftest import Job


def test_output_dir_keeps_raw_output(start: Callable[..., Job], tmp_path: Path) -> None:
    script = r'os.write(1, b"out %d\n\xff no end" % rank); os.write(2, b"err\n")'
    code, out, err = start(script, 11, "--output-dir", str(tmp_path / "logs")).finish(60)
    assert code == 0
    for rank in range(11):
        folder = tmp_path / "logs" / f"rank.{rank:02}"
        assert (folder / "stdout").read_bytes() == b"out %d\n\xff no end" % rank
        assert (folder / "stderr").read_bytes() == b"err\n"
        assert f"[{rank}]<stdout>:out {rank}\n" in out and f"[{rank}]<stdout>:\ufffd no end\n" in out
    assert err.count("<stderr>:err\n") == 11


def test_output_dir_that_cannot_be_created_is_an_error(start: Callable[..., Job], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = start("", 1, "--output-dir", str(tmp_path / "file" / "logs")).finish()
    assert code == 2
    assert err.startswith("error: the output directory cannot be used:")


LOUD = """
piece = b"x" * 99 + b"\\n"
for number in range(300):
    os.write(1, piece * 1000)
    tell("written", number)
"""


def test_slow_reader_gets_all_output_in_bounded_memory(start: Callable[..., Job]) -> None:
    """30 MB: far more than all buffers on the way, so the worker must have been held up, and let go again."""
    job = start(LOUD, 1)
    job.told("written")
    stalled = stall(job)
    assert stalled < 250
    launcher = Path(f"/proc/{job.process.pid}/status").read_text()
    agent = Path(f"/proc/{job.agent()}/status").read_text()
    for status in (launcher, agent):
        resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        assert resident < 100_000, "kB of memory"
    code, out, _ = job.finish(60)
    assert code == 0
    assert out.count("[0]<stdout>:" + "x" * 99 + "\n") == 300_000


def stall(job: Job) -> int:
    """Wait until the worker makes no progress, and return how far it has come."""
    last, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        now = int(job.told("written"))
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.02)
    return last


def test_failure_ends_job_even_if_output_is_not_read(start: Callable[..., Job]) -> None:
    script = (
        "if rank == 0:\n    while True: os.write(1, b'x' * 1000 + b'\\n')\ntell('ready'); time.sleep(0.5); sys.exit(5)"
    )
    job = start(script, 2)
    job.told("ready")
    until_no_worker(job)
    code, _, err = job.finish()
    assert code == 5 and "error: rank 1 on host" in err


def until_no_worker(job: Job) -> None:
    deadline = time.monotonic() + 60
    while any(b"worker.py" in command_line(pid) for pid in job.left()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_ctrl_c_does_not_wait_for_a_reader(start: Callable[..., Job]) -> None:
    job = start(LOUD, 1)
    job.told("written")
    stall(job)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(15) == 130
    assert job.left() == []


def test_closed_output_ends_job(start: Callable[..., Job]) -> None:
    read_end, write_end = os.pipe()
    job = start("while True: print('x'); time.sleep(0.01)", 1, stdout=write_end)
    os.close(write_end)
    assert os.read(read_end, 10)
    os.close(read_end)
    _, err = job.process.communicate(timeout=20)
    assert job.process.returncode == 128 + signal.SIGPIPE
    assert "the reader of the output has gone" in err
    assert job.left() == []
