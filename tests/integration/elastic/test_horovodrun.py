"""Elastic scripts in Horovod's style under horovodrun: changing hosts, failing workers, and the messages about them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import drop_in
import pytest
from launched import Job
from waiting import until

SCRIPT = Path(__file__).parent / "scripts" / "horovod_style.py"
# Quick epochs of a few batches each.
SMALL = ("--samples", "32", "--batch-size", "4")
# Beside a framework's import on a busy machine nothing counts.
LONG = 120.0
pytestmark = pytest.mark.timeout(3 * LONG)

Start = Callable[..., Job]


@pytest.fixture
def horovodrun(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the script, with options for horovodrun and for itself."""
    jobs: list[Job] = []

    def start(options: Sequence[str], script: Sequence[str] = ()) -> Job:
        mark = f"TEST_MARK={tmp_path}-{len(jobs)}"
        command = [sys.executable, str(SCRIPT), *SMALL, *script]
        with open(tmp_path / "said", "wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "horovod.runner.launch", *options, *command],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=drop_in.environment(
                    TEST_MARK=mark.partition("=")[2],
                    OMP_NUM_THREADS="1",
                    FARANDOLE_FAILURE_DEADLINE="20",  # Only certain signs count, however busy this machine is.
                ),
                start_new_session=True,
            )
        jobs.append(Job(process, tmp_path, mark))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def scheduled_hosts(directory: Path, *schedule: Sequence[str]) -> tuple[str, str]:
    """Write a script that finds other hosts after each of the first epochs; return it, and the log that it counts."""
    log = directory / "log"
    cases = "\n".join(f"{epoch}) printf '%s\\n' {' '.join(hosts)};;" for epoch, hosts in enumerate(schedule[:-1]))
    script = directory / "hosts.sh"
    count = f"$(cat {log} 2>/dev/null | wc -l)"
    script.write_text(f"#!/bin/sh\ncase {count} in\n{cases}\n*) printf '%s\\n' {' '.join(schedule[-1])};;\nesac\n")
    script.chmod(0o755)
    return str(script), str(log)


def lines(job: Job, word: str, **facts: object) -> list[dict[str, str]]:
    """Return what workers have said so far in lines that begin with this word and have these facts."""
    found = [dict(fact.split("=") for fact in text.split()) for text in re.findall(rf"<stdout>:{word} (.*)", job.said)]
    return [line for line in found if all(line[name] == str(value) for name, value in facts.items())]


def wait_for(job: Job, word: str, many: int = 1, **facts: object) -> list[dict[str, str]]:
    """Wait until this number of lines has been printed, and return them."""
    try:
        until(lambda: len(lines(job, word, **facts)) >= many or job.process.poll() is not None, word, LONG)
    except pytest.fail.Exception as error:
        raise AssertionError(f"{error}; it said:\n{job.said}") from None
    found = lines(job, word, **facts)
    assert len(found) >= many, job.said
    return found


def check_alike(job: Job, size: int) -> None:
    """Check that this number of workers have the same parameters."""
    trained = lines(job, "trained")
    assert len(trained) == size, job.said
    assert len({(line["steps"], line["parameters"]) for line in trained}) == 1, trained


def test_hosts_change_while_script_waits_for_notifications(horovodrun: Start, tmp_path: Path) -> None:
    script, log = scheduled_hosts(tmp_path, ["localhost:1"], ["localhost:1", "127.0.0.1:2"], ["127.0.0.1:2"])
    job = horovodrun(
        ["-np", "1", "--min-np", "1", "--max-np", "4", "--reset-limit", "2", "--host-discovery-script", script],
        ["--epochs", "3", "--log", log, "--news-after", "0", "1"],
    )
    assert job.end(LONG) == 0, job.said
    # Epoch, worker that is rank 0, size, its host, calls of the training function. Of two newcomers, the first to come
    # is the lower rank.
    lines = Path(log).read_text().splitlines()
    assert lines[:2] == ["0 0 1 localhost 1", "1 0 3 localhost 2"]
    assert lines[2:] in (["2 1 2 127.0.0.1 3"], ["2 2 2 127.0.0.1 3"])
    job.says(
        r"farandole: workers (1 and 2|2 and 1) on 127\.0\.0\.1 join as ranks .*; 3 workers go on as generation 2 \(.*\)"
    )
    job.says(r"farandole: rank 0 \(worker 0 on localhost\) left because it was asked to leave; 2 workers go on")
    assert "Traceback" not in job.said
    check_alike(job, 2)


def test_reset_limit_ends_job_with_one_message(horovodrun: Start, tmp_path: Path) -> None:
    script, log = scheduled_hosts(tmp_path, ["localhost:1", "127.0.0.1:1"], ["127.0.0.1:1"])
    job = horovodrun(
        ["-np", "2", "--min-np", "1", "--reset-limit", "0", "--host-discovery-script", script],
        ["--epochs", "2", "--log", log, "--news-after", "0"],
    )
    assert job.end(LONG) == 1
    job.says(r"RuntimeError: Horovod detected that one or more processes exited with non-zero status")
    job.says(r"error: Horovod was shutdown because number of resets during elastic job exceeded limit: 0")
    assert "Traceback" not in job.said


def test_killed_and_failing_workers_are_replaced(horovodrun: Start, tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    job = horovodrun(
        ["-np", "3", "--min-np", "1", "--max-np", "3", "-H", "localhost:2,127.0.0.1:1"],
        ["--epochs", "1", "--until", str(finish), "--batch-wait", "0.02", "--fails", "1:1:raise"],
    )
    began = wait_for(job, "began", 3)
    assert sorted((line["rank"], line["local_rank"], line["elastic"]) for line in began) == [
        ("0", "0", "1"),
        ("1", "1", "1"),
        ("2", "0", "1"),
    ]
    wait_for(job, "epoch", 1, size=2)
    # The number that was free on the host, whatever its rank will be.
    (newcomer,) = wait_for(job, "began", worker=3)
    assert newcomer["local_rank"] == "1"
    wait_for(job, "epoch", 1, worker=3, size=3)
    os.kill(int(next(line["pid"] for line in began if line["worker"] == "0")), signal.SIGKILL)
    (newcomer,) = wait_for(job, "began", worker=4)
    assert newcomer["local_rank"] == "0"
    wait_for(job, "epoch", 1, worker=4, size=3)
    finish.touch()
    assert job.end(LONG) == 0, job.said
    job.says(
        r"farandole: rank 1 \(worker 1 on localhost\) [^;]*RuntimeError: worker 1 was told to fail[^;]*; 2 workers"
    )
    # What the others have noticed, if the agent takes longer to say how it ended than the launcher waits for that.
    how = "(: its process ended without saying goodbye| was killed by SIGKILL)"
    job.says(rf"farandole: rank 0 \(worker 0 on localhost\){how}; 2 workers go on as generation 4 \(")
    assert job.said.count("Traceback") == 1
    check_alike(job, 3)


def test_blacklisted_host_returns_after_cooldown(horovodrun: Start, tmp_path: Path) -> None:
    finish = tmp_path / "finish"
    job = horovodrun(
        ["-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2", "--blacklist-cooldown-range", "1", "2"],
        ["--epochs", "1", "--until", str(finish), "--batch-wait", "0.02", "--fails", "1:3:kill"],
    )
    wait_for(job, "epoch", 2, size=2)
    wait_for(job, "began", 6)
    wait_for(job, "epoch", 1, size=4, worker=5)
    finish.touch()
    assert job.end(LONG) == 0, job.said
    job.says(
        r"warning: host 127\.0\.0\.1 is blacklisted for 1 s: worker 3 failed on it; worker 2 there leaves at the end"
    )
    assert "Traceback" not in job.said
    check_alike(job, 4)


def test_elastic_timeout_ends_job(horovodrun: Start) -> None:
    job = horovodrun(
        [*"-np 2 --min-np 2 --elastic-timeout 1 --blacklist-cooldown-range 100 200 -H localhost:1,127.0.0.1:1".split()],
        ["--epochs", "2", "--fails", "1:1:kill"],
    )
    assert job.end(LONG) == 1
    job.says("Please check that you have enough resources to run at least 2 Horovod processes")
    job.says(r"RuntimeError: Horovod detected that one or more processes exited with non-zero status")
    assert "Traceback" not in job.said


def test_job_fails_when_all_workers_fail(horovodrun: Start) -> None:
    job = horovodrun(["-np", "2", "--min-np", "1", "--max-np", "2"], ["--fails", "0:0:raise", "0:1:raise"])
    assert job.end(LONG) == 1
    job.says(r"RuntimeError: Horovod detected that one or more processes exited with non-zero status")
    job.says("RuntimeError: worker [01] was told to fail")


@pytest.mark.parametrize("size", [1, 2])
def test_job_ends_when_all_holders_of_state_are_killed(horovodrun: Start, size: int) -> None:
    fails = [f"1:{worker}:kill" for worker in range(size)]
    job = horovodrun(["-np", str(size), "--min-np", "1"], ["--epochs", "3", "--fails", *fails])
    assert job.end(LONG) == 1
    job.says(
        r"StateLostError: all workers that held the state of the training are lost "
        r"\(lost last: rank \d \(worker \d\) was killed"
    )
    job.says(r"RuntimeError: Horovod detected that one or more processes exited with non-zero status")
    assert {line["epoch"] for line in lines(job, "epoch")} == {"0"} and not lines(job, "trained")
    assert len(lines(job, "began")) <= 2 * size, "nobody is started once more for that"


@pytest.mark.parametrize("launcher", [(), ("-m", "horovod.runner.launch", "-np", "2", sys.executable)])
def test_elastic_script_runs_in_fixed_job(launcher: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), *SMALL, "--epochs", "2"],
        env=drop_in.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained ") == (2 if launcher else 1)
