"""The commands about jobs, and `farandole.submit`, with a fake place that runs jobs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_jobs
import pytest
from fake_jobs import FakeJobs

import farandole
from farandole.control.cli.main import main
from farandole.control.jobs import function, places
from farandole.control.jobs.errors import BadSpec, Refused, Unreachable
from farandole.control.jobs.handle import JobFailed
from farandole.control.jobs.log_lines import follow_file, of_rank
from farandole.control.jobs.places import Place
from farandole.control.jobs.status import JobState
from farandole.errors import WorkerLostError

Farandole = Callable[..., tuple[int, str, str]]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJobs]:
    fake = FakeJobs()
    monkeypatch.setattr(fake_jobs, "THE_ONE", fake)
    monkeypatch.setitem(places.PLACES, "fake", Place("a fake", "fake_jobs:connect"))
    monkeypatch.setenv("FARANDOLE_ON", "fake")
    yield fake


@pytest.fixture
def command(jobs: FakeJobs, capsys: pytest.CaptureFixture[str]) -> Farandole:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_submit_builds_spec_from_command_line(command: Farandole, jobs: FakeJobs) -> None:
    code, out, _ = command(
        *("submit", "--detach", "-np", "2:8", "--priority", "5", "--queue", "vision", "--name", "a", "-x", "A=1"),
        *("--resource", "memory=8Gi", "--", "python", "train.py", "--priority", "7"),
    )
    assert (code, out) == (0, "a\n")
    spec = jobs.specs["a"]
    assert spec.command == ("python", "train.py", "--priority", "7")
    assert (spec.workers.min, spec.workers.max, spec.priority, spec.queue) == (2, 8, 5, "vision")
    assert spec.environment == {"A": "1"} and spec.resources == {"memory": "8Gi"}
    assert spec.working_directory == str(Path.cwd())


@pytest.mark.parametrize("words", [("jobs",), ("status", "a")])
def test_control_characters_of_jobs_are_escaped_on_the_terminal(command: Farandole, words: tuple[str, ...]) -> None:
    command("submit", "--detach", "--name", "a", "--", "printf", "caf\u00e9 \x1b]0;title\x07\nnext")
    code, out, _ = command(*words)
    assert code == 0 and "caf\u00e9 \\x1b]0;title\\x07\\nnext" in out and "\x1b" not in out


def test_submit_spells_workers_as_run_does(command: Farandole, jobs: FakeJobs) -> None:
    command("submit", "--detach", "-np", "4", "--min-np", "2", "--max-np", "8", "--name", "a", "true")
    workers = jobs.specs["a"].workers
    assert (workers.min, workers.max, workers.replicas) == (2, 8, 4)


def test_dry_run_prints_what_would_be_submitted(command: Farandole, jobs: FakeJobs) -> None:
    assert command("submit", "--dry-run", "--name", "a", "--", "python", "train.py") == (0, "a: python train.py\n", "")
    assert jobs.specs == {}


def test_status_of_failed_job_names_the_command_that_shows_its_output(command: Farandole, jobs: FakeJobs) -> None:
    command("submit", "--detach", "--name", "a", "--", "false")
    jobs.change("a", state=JobState.FAILED, exit_code=1)
    code, out, err = command("status", "a")
    assert (code, err) == (0, "hint: farandole logs a shows its output\n")
    assert "exit code: 1" in out


def test_submit_reads_a_file(command: Farandole, jobs: FakeJobs, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [true]\nname: a\npriority: 3\n".replace("true", '"true"'))
    assert command("submit", "--detach", "-f", str(tmp_path / "job.yaml"), "--priority", "4")[:2] == (0, "a\n")
    assert jobs.specs["a"].priority == 4


def test_submit_shows_output_and_exits_with_code_of_the_job(command: Farandole, jobs: FakeJobs) -> None:
    jobs.lines, jobs.exit_code = ["[0]<stdout>:begun\n"], 7
    code, out, err = command("submit", "--name", "a", "true")
    assert (code, out) == (7, "[0]<stdout>:begun\n")
    assert "farandole: job a is submitted to fake; Ctrl-C does not end it\n" in err
    assert err.endswith("farandole: a has failed: ended with code 7\n")


def test_ctrl_c_detaches_and_hints_at_commands(command: Farandole, jobs: FakeJobs) -> None:
    jobs.interrupted = True
    code, _, err = command("submit", "--name", "a", "true")
    assert code == 130
    assert "job a keeps running; farandole logs -f a shows it again, farandole cancel a ends it\n" in err
    assert jobs.told["a"].state is JobState.WAITING
    code, _, err = command("logs", "-f", "a")
    assert code == 130 and "farandole logs -f a shows its output again" in err


def test_jobs_are_listed(command: Farandole, jobs: FakeJobs) -> None:
    assert command("jobs") == (0, "", "no jobs on fake\n")
    command("submit", "--detach", "--name", "a", "-np", "2", "true")
    jobs.change("a", state=JobState.RUNNING, workers=1, reason="")
    command("submit", "--detach", "--name", "b", "false")
    jobs.change("b", state=JobState.FAILED, reason="ended with code 1")
    out = command("jobs")[1].splitlines()
    assert [line.split()[:3] for line in out] == [
        ["name", "state", "workers"],
        ["a", "Running", "1/2"],
        ["b", "Failed", "-"],
    ]
    assert len(command("jobs", "--active")[1].splitlines()) == 2
    told = json.loads(command("jobs", "--json")[1])
    assert [(job["name"], job["state"]) for job in told] == [("a", "Running"), ("b", "Failed")]


def test_status_says_why_a_job_waits(command: Farandole, jobs: FakeJobs) -> None:
    command("submit", "--detach", "--name", "a", "true")
    out = command("status", "a")[1]
    assert "state:     Waiting\nreason:    waits: 0 of 4 slots are free\n" in out
    assert json.loads(command("status", "a", "--json")[1])["reason"] == "waits: 0 of 4 slots are free"


def test_scale_suspend_resume_and_cancel(command: Farandole, jobs: FakeJobs) -> None:
    command("submit", "--detach", "--name", "a", "true")
    assert command("scale", "a", "8") == (0, "", "farandole: job a now asks for 8 workers\n")
    assert jobs.told["a"].wanted == 8
    assert command("suspend", "a")[0] == 0 and jobs.told["a"].state is JobState.SUSPENDED
    assert command("resume", "a")[0] == 0 and jobs.told["a"].state is JobState.WAITING
    assert json.loads(command("cancel", "a", "--json")[1])["state"] == "Cancelled"
    assert command("cancel", "a") == (2, "", "error: job a is over\nhint: it cannot be cancelled any more\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("status", "b"), "error: there is no job b\nhint: farandole jobs lists them\n"),
        (("submit",), "error: the command is missing\nhint: farandole submit -np 2 -- python train.py\n"),
        (("submit", "-np", "8:2", "true"), "error: workers: max 2 is below min 8\nhint: "),
        (("submit", "--resource", "8Gi", "true"), "error: --resource 8Gi: not a valid resource\nhint: "),
        (("submit", "-f", "/no/such", "true"), "error: /no/such cannot be read"),
        (("jobs", "--on", "lokal"), "error: jobs cannot run on 'lokal'\nhint: did you mean local?"),
    ],
)
def test_wrong_command_lines_are_refused_with_hint(command: Farandole, words: tuple[str, ...], said: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert err.startswith(said)


def test_missing_package_of_a_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(places.PLACES, "moon", Place("far away", "no_such_module_at_all:connect", extra="moon"))
    with pytest.raises(Unreachable) as raised:
        places.connect("moon", {})
    assert "no_such_module_at_all" in raised.value.message and "farandole[moon]" in raised.value.hint


# --- from Python -------------------------------------------------------------------------------------------------


def test_submit_from_python_returns_handle(jobs: FakeJobs) -> None:
    job = farandole.submit("train.py", "--epochs", 3, workers="2:8", name="a", priority=5)
    assert (job.name, job.place) == ("a", "fake")
    assert jobs.specs["a"].command == (sys.executable, "train.py", "--epochs", "3")
    assert job.status().state is JobState.WAITING
    with pytest.raises(TimeoutError, match=r"waits: 0 of 4 slots"):
        job.result(timeout=0)
    jobs.lines = ["one\n"]
    assert list(job.logs(follow=True)) == ["one\n"]
    assert job.result().exit_code == 0
    jobs.change("a", state=JobState.FAILED, reason="ended with code 3")
    with pytest.raises(JobFailed, match="job a has failed: ended with code 3") as failed:
        job.result()
    # Errors are pickled between processes, such as those of concurrent.futures.
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.status) == (str(failed.value), failed.value.status)


def test_submit_to_unknown_place_is_refused(jobs: FakeJobs) -> None:
    with pytest.raises(Refused):
        farandole.submit("train.py", on="nowhere")


# --- logs ----------------------------------------------------------------------------------------------------------


def test_rank_that_has_printed_nothing_is_told(command: Farandole, jobs: FakeJobs) -> None:
    command("submit", "--detach", "--name", "a", "true")
    code, out, err = command("logs", "a", "--rank", "9")
    assert (code, out) == (0, "")
    assert err == "farandole: rank 9 has printed nothing\nhint: farandole status a shows how many workers it has\n"
    assert command("logs", "a") == (0, "", "")


def test_lines_of_one_rank() -> None:
    lines = ["[0]<stdout>:a\n", "\x1b[32m[1]<stderr>:\x1b[0mb\n", "farandole: job x\n", "[10]<stdout>:[1]<stdout>:c\n"]
    assert list(of_rank(lines, 1)) == [lines[1]]
    assert list(of_rank(lines, 10)) == [lines[3]]
    assert list(of_rank(lines, None)) == lines
    alike = ["3 ranks (0-1, 10) printed:\n", "    | a\n", "    | b\n", "[2]<stdout>:c\n", "    | not of them\n"]
    assert list(of_rank(alike, 10)) == ["a\n", "b\n"]
    assert list(of_rank(alike, 2)) == ["[2]<stdout>:c\n"]


def test_follow_file_yields_lines_until_writer_is_done(tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = iter([b"one\ntw", b"o\nthree", b""])

    def is_over() -> bool:
        piece = next(steps)
        with log.open("ab") as file:
            file.write(piece)
        return piece == b""

    assert list(follow_file(log, is_over)) == ["one\n", "two\n", "three\n"]
    assert list(follow_file(log, None)) == ["one\n", "two\n", "three\n"]
    assert list(follow_file(tmp_path / "missing", None)) == []


def test_reading_without_follow_ends_while_file_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("0\n")
    read = []
    for line in itertools.islice(follow_file(log, None), 20):
        read.append(line)
        with log.open("a") as file:
            file.write(f"{len(read)}\n")
    assert read == ["0\n"]


def test_long_log_is_read_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 400_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in follow_file(log, None)) == 400_001
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_function_is_submitted_as_command_and_returns_results(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = farandole.submit(pow, 2, 5, workers=2, name="power", shared=tmp_path)
    command = jobs.specs["power"].command
    assert command[1:3] == ("-m", "farandole.control.jobs.function")
    folder = Path(command[3])
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o077 == 0
    for rank in (1, 0):
        call(folder, rank, monkeypatch)
    jobs.change("power", state=JobState.SUCCEEDED)
    assert job.result() == [32, 32]
    assert not list(tmp_path.iterdir()) and job.result() == [32, 32]


def test_calls_are_removed_with_their_directory_unless_others_are_there(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handles = {name: farandole.submit(pow, 2, 5, name=name) for name in ("first", "second")}
    for name, left in (("first", 1), ("second", 0)):
        call(Path(jobs.specs[name].command[3]), 0, monkeypatch)
        jobs.change(name, state=JobState.SUCCEEDED)
        assert handles[name].result() == [32]
        assert len(list(tmp_path.glob(".farandole-calls/*"))) == left
    assert not list(tmp_path.iterdir())


def test_call_of_a_refused_job_is_removed(jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> str:
        raise Refused("there is a job of this name")

    with pytest.raises(BadSpec):
        farandole.submit(pow, 2, 5, shared=tmp_path, workers="none")
    monkeypatch.setattr(jobs, "submit", refuse)
    with pytest.raises(Refused, match="there is a job of this name"):
        farandole.submit(pow, 2, 5, shared=tmp_path)
    assert not list(tmp_path.iterdir())


def test_results_of_an_attempt_that_was_stopped_do_not_count(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = farandole.submit(os.getenv, "FARANDOLE_JOB", workers="1:3", name="elastic", shared=tmp_path)
    folder = Path(jobs.specs["elastic"].command[3])
    call(folder, 2, monkeypatch, attempt="first")  # When it has returned, the job is suspended.
    for rank in range(2):
        call(folder, rank, monkeypatch, attempt="second")
    jobs.change("elastic", state=JobState.SUCCEEDED)
    assert job.result() == ["second", "second"]


def call(folder: Path, rank: int, monkeypatch: pytest.MonkeyPatch, attempt: str = "1") -> None:
    """Call a submitted function as a worker does."""
    with monkeypatch.context() as patched:
        patched.setenv("RANK", str(rank))
        patched.setenv("FARANDOLE_JOB", attempt)
        patched.setattr(sys, "argv", ["function", str(folder)])
        patched.setattr(sys, "path", list(sys.path))
        function.main()


class OwnError(Exception):
    """Can be pickled, but not unpickled, as many exceptions with a constructor of their own."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(f"{what} on rank {rank}")


def on_rank(first: object, second: object) -> object:
    """Return or raise what is given for this rank."""
    mine = (first, second)[int(os.environ["RANK"])]
    if isinstance(mine, type):
        raise mine("a", 1)
    return mine


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ((WorkerLostError, LookupError), LookupError),
        ((WorkerLostError, WorkerLostError), WorkerLostError),
        ((OwnError, 1), TypeError),
        ((1, 1), type(None)),
    ],
    ids=["the others failed because of it", "of a worker that was killed", "not unpickled", "none"],
)
def test_cause_of_failed_function_is_what_failed_first(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[object, ...], cause: type
) -> None:
    job = farandole.submit(on_rank, *given, workers=2, name="a", shared=tmp_path)
    for rank in range(2):
        with contextlib.suppress(Exception):
            call(Path(jobs.specs["a"].command[3]), rank, monkeypatch)
    jobs.change("a", state=JobState.FAILED)
    for _ in range(2):
        with pytest.raises(JobFailed, match="job a has failed") as raised:
            job.result()
        assert type(raised.value.__cause__) is cause
        assert not list(tmp_path.iterdir())


def test_missing_value_of_a_worker_is_an_error_unless_job_is_elastic(
    jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers, name in ((2, "fixed"), ("1:2", "elastic")):
        job = farandole.submit(pow, 2, 5, workers=workers, name=name, shared=tmp_path)
        call(Path(jobs.specs[name].command[3]), 1, monkeypatch)
        jobs.change(name, state=JobState.SUCCEEDED)
        if name == "elastic":
            assert job.result() == [32]
            continue
        with pytest.raises(JobFailed, match="job fixed has values of only 1 of 2 workers"):
            job.result()
        call(Path(jobs.specs[name].command[3]), 0, monkeypatch)  # As if a file had been seen late.
        assert job.result() == [32, 32]


def test_function_that_cannot_be_pickled_or_written_is_refused(jobs: FakeJobs, tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(Refused, match="the function cannot be sent: TypeError"):
        farandole.submit(lambda: lock, shared=tmp_path)
    with pytest.raises(Refused, match="a function cannot be sent into a container"):
        farandole.submit(pow, 2, 5, image="me/train", shared=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"cannot be written: .*shared=DIRECTORY"):
        farandole.submit(pow, 2, 5, shared=tmp_path / "file")
    assert jobs.specs == {}
