"""The choice of the first failure, and its report."""

from __future__ import annotations

import signal

import pytest

from farandole.control.launcher.failure.failure_text import exit_code, render_failure
from farandole.control.launcher.failure.record import (
    WorkerRecord,
    find_traceback,
    first_failure,
    how_it_ended,
    shell_code,
)
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import Identity, LaunchPlan

ENDED_AT = 10.0


def plan(size: int) -> LaunchPlan:
    machine = Machine("earth", 8, 0, "/home/me", {})
    return make_plan(LaunchSpec(("python", "train.py"), size), machine, Identity())


def plan_on(*hosts: str) -> LaunchPlan:
    """Return the plan of a job with two workers on each host."""
    machine = Machine("earth", 8, 0, "/home/me", {})
    slots = tuple(Host(name, 2) for name in hosts)
    return make_plan(LaunchSpec(("python", "train.py"), 2 * len(hosts), hosts=slots), machine, Identity())


def lost(rank: int, time: float, host: str) -> WorkerRecord:
    return WorkerRecord(
        rank, exit_time=time, host_lost=f"nothing was heard from it for 1.8 s\n the network to {host} is cut"
    )


def record(rank: int, code: int, time: float, **more: object) -> WorkerRecord:
    return WorkerRecord(rank, exit_code=code, exit_time=time, **more)  # type: ignore[arg-type]


TERM = -signal.SIGTERM
KILL = -signal.SIGKILL


@pytest.mark.parametrize(
    ("records", "first"),
    [
        pytest.param([record(0, 0, 1), record(1, 0, 2)], None, id="nobody failed"),
        pytest.param([record(0, 1, 5), record(1, 3, 4)], 1, id="the earlier one"),
        pytest.param([record(0, TERM, 11), record(1, 3, 9)], 1, id="ended by the launcher is never first"),
        pytest.param([record(0, TERM, 3), record(1, 1, 9)], 0, id="somebody else's SIGTERM counts"),
        pytest.param(
            [record(0, 1, 4, report_time=4, consequence_of=1), record(1, KILL, 9)], 1, id="a consequence is not first"
        ),
        pytest.param(
            [record(0, 1, 4, report_time=4, consequence_of=2), record(1, 1, 5, consequence_of=2), record(2, 0, 3)],
            0,
            id="only consequences: the earliest of them",
        ),
        pytest.param([record(0, 1, 9), record(1, TERM, 12, report_time=8)], 1, id="said that it fails, then was ended"),
        pytest.param([record(0, 1, 9.9, consequence_of=1), record(1, -signal.SIGSEGV, 12)], 1, id="a slow crash"),
        pytest.param([record(0, 1, 12), record(1, 2, 9)], 1, id="an error while being ended"),
        pytest.param([record(0, 1, 9), WorkerRecord(1, not_started="no memory", exit_time=2)], 1, id="not started"),
        pytest.param(
            [record(0, 1, 9.5, report_time=9.4, consequence_of=1), lost(1, 9.8, "h2")], 1, id="lost with its host"
        ),
        pytest.param([record(0, 1, 9), lost(1, 11, "h2")], 0, id="a host that is lost while the job is ended"),
        pytest.param([record(0, 1, 9), lost(1, 8, "h2")], 1, id="a host that was silent before, and found lost later"),
    ],
)
def test_first_failure(records: list[WorkerRecord], first: int | None) -> None:
    found = first_failure(records, ENDED_AT)
    assert (None if found is None else found.rank) == first


def test_exit_codes_follow_shell_convention() -> None:
    assert (shell_code(7), shell_code(KILL)) == (7, 137)
    assert exit_code(record(0, KILL, 1), ENDED_AT) == 137
    assert exit_code(record(0, TERM, 11, report_time=1), ENDED_AT) == 1
    assert how_it_ended(record(0, -40, 1)) == "was killed by signal 40"


def test_report_of_an_exception() -> None:
    stderr = bytearray(b"epoch 1\nTraceback (most recent call last):\n  File 'train.py'\nValueError: boom\n")
    records = [
        record(0, 1, 9.5, report_time=9.4, consequence_of=1),
        record(1, 1, 9, stderr_tail=stderr, exception="ValueError: boom"),
        record(2, TERM, 11),
        record(3, TERM, 11),
        record(4, 0, 1),
    ]
    text = render_failure(plan(5), records, records[1], ENDED_AT)
    assert text == (
        "error: rank 1 on host earth failed first: it exited with code 1 (ValueError: boom)\n"
        "\n"
        "    Traceback (most recent call last):\n"
        "      File 'train.py'\n"
        "    ValueError: boom\n"
        "\n"
        "others: rank 0 failed because rank 1 was lost (exited with code 1); "
        "ranks 2-3 ended by the launcher (SIGTERM); rank 4 exited with code 0\n"
        "hint: check whether it also fails by itself: -np 1; --output-dir DIR saves the whole output of every rank"
    )


def test_report_of_kill_has_hint() -> None:
    records = [record(0, KILL, 9), record(1, TERM, 11)]
    text = render_failure(plan(2), records, records[0], ENDED_AT)
    assert text.startswith("error: rank 0 on host earth failed first: it was killed by SIGKILL\n")
    assert "out of memory" in text and "dmesg" in text


def test_report_without_a_traceback_shows_the_last_lines() -> None:
    tail = bytearray(b"".join(b"line %d\n" % number for number in range(20)) + b"\n")
    records = [record(0, 3, 9, stderr_tail=tail)]
    text = render_failure(plan(1), records, records[0], ENDED_AT)
    assert "    | line 10\n" in text and "    | line 19\n" in text and "line 9\n" not in text
    assert "hint: the program itself chose this exit code" in text


def test_the_reported_traceback_is_preferred() -> None:
    tail = bytearray(b"Traceback (most recent call last):\n  x\nKeyError: 1\n")
    records = [record(0, 1, 9, stderr_tail=tail, traceback="Traceback (most recent call last):\n  y\nValueError: 2\n")]
    text = render_failure(plan(1), records, records[0], ENDED_AT)
    assert "ValueError: 2" in text and "KeyError" not in text


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: boom'


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("", ""),
        ("just words\n", ""),
        (f"before\n{TRACEBACK}\n", TRACEBACK),
        (f"before\n{TRACEBACK}", TRACEBACK),
        (f"{TRACEBACK.replace('boom', 'old')}\nlater\n\n{TRACEBACK}\n\nafter\n", TRACEBACK),
        (f"{TRACEBACK}\nsecond line of the message\n\nafter\n", f"{TRACEBACK}\nsecond line of the message"),
        (f" 10%\r 20%\r{TRACEBACK}\n", TRACEBACK),
    ],
)
def test_find_traceback(tail: str, expected: str) -> None:
    assert find_traceback(tail.encode()) == expected


def test_chained_tracebacks_belong_together() -> None:
    chain = (
        f"{TRACEBACK}\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{TRACEBACK.replace('boom', 'second')}"
    )
    assert find_traceback(f"noise\n{chain}\n".encode()) == chain


def test_a_real_exception_group_is_found() -> None:
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in <module>\n'
        "  | ExceptionGroup: two (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | ValueError: 1\n"
        "    +------------------------------------"
    )
    assert find_traceback(f"noise\n{group}\n".encode()) == group


def test_only_the_end_of_standard_error_is_kept() -> None:
    worker = WorkerRecord(0)
    for _ in range(100):
        worker.heard(b"x" * 10_000)
    worker.heard(b"end")
    assert len(worker.stderr_tail) == 64 * 1024 and worker.stderr_tail.endswith(b"xend")


# --- what the kernel and lost hosts do -----------------------------------------------------------------------------

BY_KERNEL = "the kernel killed it: out of memory (it used 498 MiB; cgroup /jobs may use 512 MiB)"


def test_report_of_a_kill_by_the_kernel() -> None:
    records = [record(0, KILL, 9, out_of_memory=BY_KERNEL), record(1, TERM, 11)]
    assert render_failure(plan(2), records, records[0], ENDED_AT) == (
        f"error: rank 0 on host earth failed first: it was killed by SIGKILL; {BY_KERNEL}\n"
        "others: rank 1 ended by the launcher (SIGTERM)\n"
        "hint: use a smaller batch or fewer workers on this host, or give the job more memory"
    )


def test_report_of_a_lost_host() -> None:
    records = [
        record(0, 1, 9.5, report_time=9.4, consequence_of=3),
        record(1, TERM, 11),
        lost(2, 8, "h2"),
        lost(3, 8, "h2"),
        lost(4, 8.5, "h3"),
        lost(5, 8.5, "h3"),
    ]
    text = render_failure(plan_on("h1", "h2", "h3"), records, records[2], ENDED_AT)
    assert text == (
        "error: host h2 was lost first, with ranks 2-3: nothing was heard from it for 1.8 s; the network to h2 is cut\n"
        "others: rank 0 failed because host h2 was lost (exited with code 1); "
        "rank 1 ended by the launcher (SIGTERM); "
        "ranks 4-5 lost with host h3 (nothing was heard from it for 1.8 s; the network to h3 is cut)\n"
        "hint: check that h2 and its network are up: ping h2; ssh h2 uptime. It may have restarted, or hang"
    )
    assert exit_code(records[2], ENDED_AT) == 1


def test_worker_that_ended_before_its_host_was_lost_is_not_lost() -> None:
    records = [record(0, TERM, 11), record(1, TERM, 11), lost(2, 8, "h2"), record(3, 0, 7)]
    text = render_failure(plan_on("h1", "h2"), records, records[2], ENDED_AT)
    assert text.startswith("error: host h2 was lost first, with rank 2: nothing was heard")
    assert "others: ranks 0-1 ended by the launcher (SIGTERM); rank 3 exited with code 0" in text


def test_output_of_worker_on_lost_host_is_not_the_reason() -> None:
    first = lost(2, 8, "h2")
    first.heard(TRACEBACK.encode())
    text = render_failure(plan_on("h1", "h2"), [first], first, ENDED_AT)
    assert "Traceback" not in text and "its last lines" not in text


def test_failure_before_loss_of_another_host_is_first() -> None:
    records = [record(0, 3, 8), record(1, TERM, 11), lost(2, 12, "h2"), lost(3, 12, "h2")]
    text = render_failure(plan_on("h1", "h2"), records, records[0], ENDED_AT)
    assert text.startswith("error: rank 0 on host h1 failed first: it exited with code 3\n")
    assert "ranks 2-3 lost with host h2 (nothing was heard" in text


def test_a_traceback_as_torch_distributed_prints_it() -> None:
    tail = b"[rank1]: Traceback (most recent call last):\n[rank1]:   File ...\n[rank1]: ValueError: boom\n"
    assert find_traceback(tail) == "Traceback (most recent call last):\n  File ...\nValueError: boom"
