"""The launcher is killed while a job trains: another one takes it over, and neither disturbs a step."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Job, Training
from waiting import kill, processes_with, until

from farandole.base.wire.address import parse_address
from farandole.control.launcher.daemon.client_requests import view_of
from farandole.control.launcher.daemon.jobs import JobDirectory
from farandole.control.launcher.supervise.failover_state import read_failover_state

NAME = "dance"
TAKEN_OVER = r"farandole: the launcher was killed; another one has taken over after [0-9.]+ m?s: "
THREE = ("--job", NAME, "-np", "3", "--min-np", "1", "--max-np", "3")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which only this test's jobs are found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "farandole" / "jobs"


@pytest.fixture
def training(train: Callable[..., Training]) -> Training:
    job = train(*THREE)
    job.await_steps(5, size=3)
    return job


def daemon(home: Path) -> int:
    """Return the process that has the job."""
    found = re.search(r'"pid":(\d+)', (home / NAME / "job.json").read_text())
    assert found is not None
    return int(found[1])


def kill_daemon(home: Path) -> None:
    """Kill it, and wait until it is gone; what follows it may be there already."""
    kill(daemon(home))


def kill_launcher(job: Job) -> None:
    """Kill all of it: the client, the daemon and its watchdog."""
    every = launchers(job)
    assert len(every) == 2
    for pid in every:
        os.kill(pid, signal.SIGSTOP)  # The watchdog would start another one.
    for pid in (job.process.pid, *every):
        kill(pid)
    job.process.wait()


def launchers(job: Job) -> list[int]:
    """Return the daemon and its watchdog."""
    return [pid for pid in processes_with(job.mark) if b"farandole.control.launcher.daemon" in _command(pid)]


def members(training: Training) -> list[int]:
    """Return the workers that have seen one of the last steps."""
    last = training.books.newest()["step"]
    known = training.books.read()
    return [each for each in known if any(line["step"] >= last - 1 for line in training.books.steps_of(each))]


def farandole(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farandole", *words]
    environment = {**os.environ, "TEST_DIRECTORY": str(job.directory), "TEST_MARK": job.mark.partition("=")[2]}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def attach(job: Job, *words: str) -> None:
    """Show the job again, in the place of the client that was killed."""
    environment = {**os.environ, "TEST_DIRECTORY": str(job.directory), "TEST_MARK": job.mark.partition("=")[2]}
    with open(job.directory / "said", "ab") as said:
        job.process = subprocess.Popen(
            [sys.executable, "-m", "farandole", "run", *(words or ("--attach", NAME))],
            stdout=said,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def run_watched(job: Job, home: Path) -> int:
    """Return the process that waits for the daemon's end."""
    (found,) = (pid for pid in launchers(job) if pid != daemon(home))
    return found


def comes_to_rest(job: Job) -> None:
    """Wait until the launcher has done what goes with what it has said: before, it gives no answer."""
    done = farandole(job, "hosts", NAME)
    assert done.returncode == 0, done.stderr


def obstruct(path: Path) -> None:
    """Be in the way of what is to be written there, as a full disk would be."""

    def done() -> bool:
        try:
            path.mkdir()
        except FileExistsError:  # It is being written just now.
            return False
        return True

    until(done, f"{path} is in the way")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""


# --- the daemon alone -----------------------------------------------------------------------------------------------


def test_take_over_disturbs_no_step(training: Training, home: Path) -> None:
    kill_daemon(home)
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    training.await_steps(10, size=3)
    assert "as generation 2" not in training.job.said
    training.finish()


def test_launcher_can_be_killed_repeatedly(training: Training, home: Path) -> None:
    for time_ in range(1, 8):  # More often than the watchdog starts another one: then the client does.
        kill_daemon(home)
        until(lambda times=time_: len(re.findall(TAKEN_OVER, training.job.said)) == times, f"{time_} have taken over")
        training.await_steps(3, size=3)
    assert "as generation 2" not in training.job.said
    training.finish()


def test_socket_names_are_not_reused(training: Training, home: Path) -> None:
    kill_daemon(home)
    training.job.says(TAKEN_OVER)
    comes_to_rest(training.job)  # Then the agent knows where to wait for the next one.
    left = (home / NAME / "launcher.left").read_bytes()
    # Of a socket that was let in, the kernel tells everybody the name of that where it was.
    seen = re.findall(r"@(farandole-agent-([0-9a-f]{32}))$", Path("/proc/net/unix").read_text(), re.MULTILINE)
    ours = {f"\0{name}" for name, random_part in seen if random_part.encode() in left}
    assert ours
    with contextlib.ExitStack() as squatters:
        for name in ours:
            squatters.enter_context(socket.socket(socket.AF_UNIX)).bind(name)
        kill_daemon(home)
        until(lambda: len(re.findall(TAKEN_OVER, training.job.said)) == 2, "it is taken over again")
        training.await_steps(3, size=3)
        training.finish()


def test_successor_waits_for_port_of_roster(training: Training, home: Path) -> None:
    legacy = read_failover_state(JobDirectory(home / NAME).failover_files())
    assert legacy is not None
    port = parse_address(legacy.roster)[1]
    stopped = run_watched(training.job, home)
    os.kill(stopped, signal.SIGSTOP)  # Until the port is taken: the next launcher is quick.
    kill_daemon(home)
    with squat(port):
        os.kill(stopped, signal.SIGCONT)
        training.job.says(f"warning: port {port}, at which workers look for the roster, is still in use")
    os.kill(training.books.pid(1), signal.SIGKILL)
    training.await_steps(5, size=3)
    training.finish()


def squat(port: int) -> socket.socket:
    """Take a port as soon as it is free, and give all who come there no answer."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < deadline
        time.sleep(0.001)


def test_launcher_that_cannot_write_its_record_takes_over(training: Training, home: Path) -> None:
    obstruct(home / NAME / ".job.json")
    kill_daemon(home)
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    training.await_steps(3, size=3)
    training.finish()


def test_signal_between_two_launchers_reaches_successor(training: Training, home: Path) -> None:
    stopped = run_watched(training.job, home)
    os.kill(stopped, signal.SIGSTOP)
    kill_daemon(home)
    training.job.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    os.kill(stopped, signal.SIGCONT)
    assert training.job.end() == 130, training.job.said
    assert "farandole: Ctrl-C: ending 3 workers" in training.job.said
    assert re.search(TAKEN_OVER, training.job.said)


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.3])
def test_worker_killed_right_after_launcher_is_replaced(training: Training, home: Path, seconds: float) -> None:
    victim = training.books.pid(1)
    os.kill(daemon(home), signal.SIGKILL)
    time.sleep(seconds)
    os.kill(victim, signal.SIGKILL)
    training.job.says(r"rank 1 \(worker 1 on .*\) was killed by SIGKILL; ")
    training.await_steps(5, size=3)
    training.finish()


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.05, 0.5, 2.0])
def test_launcher_killed_right_after_worker_is_replaced(training: Training, home: Path, seconds: float) -> None:
    """At any moment of the turn to the next world, and of the newcomer's way in."""
    os.kill(training.books.pid(2), signal.SIGKILL)
    time.sleep(seconds)
    os.kill(daemon(home), signal.SIGKILL)
    training.job.says(TAKEN_OVER)
    training.await_steps(5, size=3)
    training.finish()


@pytest.mark.parametrize("seed", range(3))
def test_job_survives_random_kills_of_launchers_and_workers(training: Training, home: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        workers = chance.sample(members(training), chance.choice((0, 1)))  # More, and the host is put in quarantine.
        victims = [training.books.pid(worker) for worker in workers]
        victims += [daemon(home)] * chance.choice((0, 1, 1))
        chance.shuffle(victims)
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            time.sleep(chance.choice((0.0, 0.01, 0.1)))
        if workers:
            training.await_steps(2, size=3)  # Somebody has to hold the state.
        time.sleep(chance.choice((0.0, 0.3)))
    training.finish()


def test_launcher_killed_while_workers_finish(training: Training, home: Path) -> None:
    pid = daemon(home)
    training.books.stop()
    with contextlib.suppress(ProcessLookupError):  # They may have been quicker.
        os.kill(pid, signal.SIGKILL)
    assert training.job.end() == 0, training.job.said
    assert training.books.wrongs() == []


def test_requests_reach_successor(training: Training, home: Path) -> None:
    directory = JobDirectory(home / NAME)
    os.kill(training.books.pid(2), signal.SIGKILL)
    training.await_steps(5, size=3)
    until(lambda: view_of(directory, 0).joins == 1, "the launcher has taken note of the newcomer")
    comes_to_rest(training.job)
    before = view_of(directory, 0)
    kill_daemon(home)
    training.job.says(TAKEN_OVER)
    comes_to_rest(training.job)
    after = view_of(directory, 0)
    assert (after.losses, after.joins, after.moments) == (1, 1, before.moments)
    assert {"world", "loss", "join"} == {each.kind for each in after.moments}
    assert NAME in farandole(training.job, "jobs").stdout
    done = farandole(training.job, "hosts", "add", "localhost:1", NAME)
    assert done.returncode == 0, done.stderr
    stopped = farandole(training.job, "stop", NAME)
    assert stopped.returncode == 0, stopped.stderr
    assert training.job.end() == 143


def test_launcher_killed_after_end_with_unread_output(start: Callable[..., Job], home: Path, tmp_path: Path) -> None:
    script = """
    dance()
    if os.environ["FARANDOLE_WORKER"] == "0":
        print("x" * 200_000, flush=True)
    """
    os.mkfifo(tmp_path / "said")
    reader = os.open(tmp_path / "said", os.O_RDONLY | os.O_NONBLOCK)
    job = start("--job", NAME, "-np", "2", "--min-np", "2", script=script)
    until(lambda: any(b"farandole.control.agent" in _command(pid) for pid in job.left()), "the agent begins")
    (job.directory / "finish").touch()
    until(lambda: not any(b"farandole.control.agent" in _command(pid) for pid in job.left()), "all workers have ended")
    kill_daemon(home)
    os.set_blocking(reader, True)
    with open(reader, "rb") as said:
        told = said.read()
    assert job.end() == 0, told
    assert b"the launcher was killed when the job was ending" in told


# --- all of the launcher --------------------------------------------------------------------------------------------


def test_job_without_launcher_is_taken_over_by_name(training: Training) -> None:
    kill_launcher(training.job)
    training.await_steps(10, size=3)
    stopped = farandole(training.job, "stop", NAME)
    assert f"was killed; farandole run --attach {NAME} takes it over" in stopped.stderr
    attach(training.job)
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    os.kill(training.books.pid(0), signal.SIGKILL)
    training.await_steps(5, size=3)
    training.finish()


def test_repeated_command_takes_job_over(training: Training) -> None:
    kill_launcher(training.job)
    path = training.job.directory / "training.py"
    attach(training.job, *THREE, sys.executable, str(path))
    training.job.says(rf"farandole: job {NAME} is already running; showing it")
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    training.await_steps(5, size=3)
    training.finish()


def test_job_taken_over_keeps_its_options(training: Training) -> None:
    kill_launcher(training.job)
    path = training.job.directory / "training.py"
    other = ("--job", NAME, "-np", "4", "--min-np", "4", "-H", "localhost:1")
    attach(training.job, *other, sys.executable, str(path))
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    training.await_steps(5, size=3)
    training.finish()


def test_failed_take_over_leaves_job_unchanged(training: Training, home: Path) -> None:
    kill_launcher(training.job)
    left = home / NAME / "launcher.left"
    whole = left.read_bytes()
    left.write_bytes(b"of another version")
    done = farandole(training.job, "run", "--attach", NAME)
    assert done.returncode == 2
    assert "error: the files of the killed launcher cannot be read: " in done.stderr
    left.write_bytes(whole)
    attach(training.job)
    training.job.says(TAKEN_OVER + "3 workers on 1 host go on")
    training.await_steps(5, size=3)
    training.finish()


FINISHES_BY_ITSELF = """
dance()
print("finished by itself", flush=True)
"""


def test_unwritten_output_is_repeated_to_successor(start: Callable[..., Job], home: Path) -> None:
    job = start("--job", NAME, "-np", "2", "--min-np", "2", script=FINISHES_BY_ITSELF)
    job.world(1, 2)
    # It gets what they print, and is stuck, as on a machine without memory.
    for pid in launchers(job):
        os.kill(pid, signal.SIGSTOP)
    (job.directory / "finish").touch()
    until(lambda: not any(b"worker.py" in _command(pid) for pid in job.left()), "both workers have ended")
    kill_launcher(job)
    attach(job)
    assert job.end() == 0, job.said
    assert job.said.count("finished by itself") == 2, job.said


def test_events_without_launcher_are_reported_to_successor(start: Callable[..., Job]) -> None:
    job = start("--job", NAME, "-np", "2", "--min-np", "2", script=FINISHES_BY_ITSELF)
    job.world(1, 2)
    kill_launcher(job)
    (job.directory / "finish").touch()
    until(lambda: not any(b"worker.py" in _command(pid) for pid in job.left()), "both workers have ended")
    attach(job)
    assert job.end() == 0, job.said
    assert job.said.count("finished by itself") == 2, job.said


def test_job_without_agents_cannot_be_taken_over(start: Callable[..., Job], home: Path) -> None:
    job = start("--job", NAME, "-np", "2", "--min-np", "2")
    job.world(1, 2)
    kill_all(job)
    done = farandole(job, "run", "--attach", NAME)
    assert done.returncode == 2
    assert (
        "error: the launcher was killed, and so were all agents and workers: nothing of the job is left" in done.stderr
    )
    assert "hint: start it again with --resume auto" in done.stderr
    until(lambda: not list(home.iterdir()), "it is forgotten")


def test_repeated_command_restarts_job_without_survivors(start: Callable[..., Job]) -> None:
    job = start("--job", NAME, "-np", "2", "--min-np", "2")
    job.world(1, 2)
    kill_all(job)
    (job.directory / "finish").touch()
    attach(job, "--job", NAME, "-np", "2", "--min-np", "2", sys.executable, str(job.directory / "worker.py"))
    assert job.end() == 0, job.said
    assert "it starts again" in job.said


def kill_all(job: Job) -> None:
    """Kill everything of a job, agents and workers too."""
    every = [job.process.pid, *job.left()]
    for pid in every:
        os.kill(pid, signal.SIGSTOP)  # So that none is followed by another one, or ended by one that has lost it.
    for pid in every:
        with contextlib.suppress(ProcessLookupError):  # The kernel kills workers with their agent.
            os.kill(pid, signal.SIGKILL)
    job.process.wait()
    until(lambda: job.left() == [], "all is gone")


def test_workers_wait_for_launcher_with_timeout(start: Callable[..., Job]) -> None:
    # So long the job waits in the beginning, too, for an agent that has to start.
    job = start("--job", NAME, "-np", "2", "--min-np", "2", "--elastic-timeout", "8")
    job.world(1, 2)
    kill_launcher(job)
    until(lambda: job.left() == [], "the agent has ended all", 30)


# --- what is written down -------------------------------------------------------------------------------------------


def test_failover_files_are_private(training: Training, home: Path) -> None:
    for path in (home / NAME).iterdir():
        if path.name.endswith(".left") or path.name == "launch-request":
            with contextlib.suppress(FileNotFoundError):  # A draft has its name for a moment only.
                assert path.stat().st_mode & 0o077 == 0
    assert (home / NAME).stat().st_mode & 0o077 == 0
    training.finish()
    assert list(home.iterdir()) == []


def test_agents_do_not_wait_for_successor_without_failover_state(training: Training, home: Path) -> None:
    obstacle = home / NAME / ".launcher.left"
    obstruct(obstacle)
    os.kill(training.books.pid(0), signal.SIGKILL)
    training.job.says(r"warning: the failover state cannot be written \(.*/\.launcher\.left: Is a directory\)")
    obstacle.rmdir()
    os.kill(training.books.pid(1), signal.SIGKILL)
    training.job.says("farandole: the failover state is written again")
    training.await_steps(5, size=3)
    kill_daemon(home)
    training.job.says(TAKEN_OVER)
    training.await_steps(5, size=3)

    obstruct(obstacle)
    os.kill(members_of(training)[-1], signal.SIGKILL)
    until(lambda: training.job.said.count("failover state cannot be written") == 2, "it is told again")
    comes_to_rest(training.job)  # Then the agent knows that it is not to wait for anybody.
    os.kill(daemon(home), signal.SIGKILL)
    assert training.job.end() == 1


def members_of(training: Training) -> list[int]:
    return [training.books.pid(worker) for worker in members(training)]
