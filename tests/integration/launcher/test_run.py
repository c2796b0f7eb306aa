"""Real workers through the real launcher: how jobs run, fail and end. What becomes of output is in `test_output`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Acceptance is 2 s, on a machine that does nothing else; here, it is to be less than the grace of those that are ended.
SOON = 4.5

MEET = """
client = connect()
world = client.join(f"contact of {rank}", 20)
"""


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--network", "lo,nosuch0"], "no network interface or address of this machine matches nosuch0", "--network"),
        (["--tuning", "nosuch.json"], "the results of autotuning cannot be read: ", "--autotune"),
    ],
)
def test_mistakes_in_options_are_refused_before_workers_start(
    start: Callable[..., Any], tmp_path: Path, options: list[str], message: str, hint: str
) -> None:
    code, _, err = start("tell('begun')", 2, *options).finish()
    assert code == 2
    assert errors(err) and errors(err)[0].startswith(f"error: {message}") and hint in err
    assert not (tmp_path / "begun").exists()


def test_correct_networks_and_missing_results_that_autotuning_will_write_are_accepted(
    start: Callable[..., Any],
) -> None:
    assert start("", 1, "--network", "lo,127.0.0.0/8", "--tuning", "new.json", "--autotune").finish()[0] == 0


def test_workers_meet_and_print(start: Callable[..., Any]) -> None:
    code, out, err = start(MEET + "print(world.generation, world.rank, *world.contacts)", 2).finish()
    assert code == 0
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:1 0 contact of 0 contact of 1",
        "[1]<stdout>:1 1 contact of 0 contact of 1",
    ]
    assert errors(err) == []


def test_eight_workers_meet_repeatedly_and_oversubscription_is_noted_once(start: Callable[..., Any]) -> None:
    script = """
    client = connect()
    for generation in range(1, 101):
        world = client.join(f"{generation}/{rank}", 60)
        assert world.generation == generation, world
        assert world.contacts == tuple(f"{generation}/{r}" for r in range(8)), world
        client.leave(generation)
    print("done")
    """
    code, out, err = start(script, 8).finish(100)
    assert code == 0
    assert sorted(out.splitlines()) == [f"[{rank}]<stdout>:done" for rank in range(8)]
    cores = len(os.sched_getaffinity(0))
    assert err.count("workers share") == (1 if cores < 8 else 0)


def test_environment_of_a_worker(start: Callable[..., Any]) -> None:
    script = """
    names = "FARANDOLE_ROSTER FARANDOLE_LISTEN FARANDOLE_FUSION_THRESHOLD FARANDOLE_TRANSPORT HOROVOD_LOCAL_RANK"
    names += " HOROVOD_SIZE HOROVOD_CONTROLLER WORLD_SIZE MASTER_ADDR PYTHONUNBUFFERED HELLO"
    print(*(f"{name}={os.environ[name]}" for name in names.split()), sep="\\n")
    print("cwd", os.getcwd())
    print("leader", os.getsid(0) == os.getpid())
    print("signals", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    options = ["--fusion-threshold-mb", "1", "--transport", "tcp", "-x", "HELLO=wide world"]
    code, out, _ = start(script, 1, *options).finish()
    lines = [line.partition(":")[2] for line in out.splitlines()]
    assert code == 0
    assert lines[0].startswith("FARANDOLE_ROSTER=127.0.0.1:")
    assert lines[1:] == [
        "FARANDOLE_LISTEN=127.0.0.1",
        "FARANDOLE_FUSION_THRESHOLD=1048576",
        "FARANDOLE_TRANSPORT=tcp",
        "HOROVOD_LOCAL_RANK=0",
        "HOROVOD_SIZE=1",
        "HOROVOD_CONTROLLER=gloo",
        "WORLD_SIZE=1",
        "MASTER_ADDR=127.0.0.1",
        "PYTHONUNBUFFERED=1",
        "HELLO=wide world",
        f"cwd {os.getcwd()}",
        "leader True",
        "signals True",
    ]


def test_secret_is_on_no_command_line(start: Callable[..., Any]) -> None:
    script = MEET + 'tell(f"secret{rank}", os.environ["FARANDOLE_SECRET"]); signal.pause()'
    job = start(script, 2)
    secret = job.told("secret0")
    assert len(secret) == 64 and secret == job.told("secret1")
    pids = [job.process.pid, *job.left()]
    assert len(pids) == 4
    for pid in pids:
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_exit_code_of_the_failing_rank(start: Callable[..., Any]) -> None:
    script = MEET + "sys.exit(7) if rank == 2 else time.sleep(60)"
    code, _, err = start(script, 3).finish()
    assert code == 7
    assert errors(err)[0].endswith(" failed first: it exited with code 7")
    assert errors(err)[0].startswith("error: rank 2 on host ")
    assert "others: ranks 0-1 ended by the launcher (SIGTERM)" in err


def test_traceback_of_a_rank_that_raises(start: Callable[..., Any]) -> None:
    script = MEET + "def train():\n    raise ValueError('boom')\ntrain() if rank == 1 else time.sleep(60)"
    code, _, err = start(script, 2).finish()
    assert code == 1
    assert errors(err)[0].startswith("error: rank 1 on host ")
    assert err.count("Traceback (most recent call last):") == 1
    printed, _, report = err.partition("error: rank 1")
    assert "[1]<stderr>:ValueError: boom" in printed and "in train\n" in printed
    assert "\nits traceback is above, in the output of rank 1\n" in report and "\nhint: " in report


def test_error_of_all_ranks_is_reported_once_without_our_frames(start: Callable[..., Any]) -> None:
    script = """
import array
from farandole.worker.core import basics, buffers
basics.init()
buffers.allreduce(array.array("d", [0.0] * (1 + rank)), name="x")
"""
    job = start(script, 3)
    code, _, err = job.finish()
    assert code == 1
    assert "farandole.errors.MismatchError: Mismatched allreduce tensor shapes" in errors(err)[0]
    assert f'File "{job.directory}/worker.py"' in err and "farandole/core/" not in err
    assert len(err.splitlines()) <= 30
    assert "\nhint: the message says what each rank sent: let all ranks make the same calls" in err


def test_consequence_is_not_reported_as_first_failure(start: Callable[..., Any]) -> None:
    """Rank 0 exits first, because it lost rank 1, which takes its time to die: until the other's end is known."""
    script = (
        MEET
        + """
if rank == 0:
    client.report_failure("", "WorkerLostError: rank 1", consequence_of=1)
    tell("reported", os.getpid())
    sys.exit(1)
while not os.path.exists(os.path.join(here, "reported")):
    time.sleep(0.01)
with open(os.path.join(here, "reported")) as file:
    other = file.read()
while os.path.exists(f"/proc/{other}"):
    time.sleep(0.01)
os._exit(9)
"""
    )
    code, _, err = start(script, 2).finish()
    assert code == 9
    assert "error: rank 1 on host" in err
    assert "rank 0 failed because rank 1 was lost (exited with code 1)" in err


@pytest.mark.parametrize(
    ("left", "code", "report", "hint"),
    [
        ("sys.exit('no data')", 1, "error: rank 0 on host", "the program itself chose this exit code"),
        ("pass", 1, "error: rank 1 on host", "check that all ranks make the same number of steps"),
    ],
)
def test_failed_rank_that_leaves_early_is_blamed(
    left: str, code: int, report: str, hint: str, start: Callable[..., Any]
) -> None:
    script = f"""
import sys
import numpy as np
import farandole.numpy as hvd
hvd.init()
if hvd.rank() == 0:
    {left}
else:
    hvd.allreduce(np.ones(3))
"""
    got, _, err = start(script, 2).finish()
    assert got == code
    assert errors(err)[0].startswith(report)
    assert f"hint: {hint}" in err
    assert "others: rank" in err


def test_sigkill_of_one_of_four_workers_ends_job(start: Callable[..., Any]) -> None:
    job = start(MEET + 'tell(f"pid{rank}", os.getpid()); time.sleep(60)', 4)
    pids = [int(job.told(f"pid{rank}")) for rank in range(4)]
    os.kill(pids[2], signal.SIGKILL)
    begin = time.monotonic()
    code, _, err = job.finish()
    assert time.monotonic() - begin < SOON
    assert code == 137
    assert "error: rank 2 on host" in err and "it was killed by SIGKILL" in err
    assert "dmesg" in err
    assert "others: ranks 0-1, 3 ended by the launcher (SIGTERM)" in err


def test_exit_of_worker_is_reported_to_waiting_joins_at_once(start: Callable[..., Any]) -> None:
    script = """
    client = connect()
    if rank == 1:
        sys.exit(0)
    try:
        client.join("", 60)
    except RendezvousError as error:
        print(error.rank, error)
    """
    begin = time.monotonic()
    code, out, _ = start(script, 3).finish()
    assert time.monotonic() - begin < 50
    assert code == 0
    words = "1 the world of workers cannot be completed: rank 1 exited with code 0 before it joined"
    assert sorted(out.splitlines()) == [f"[0]<stdout>:{words}", f"[2]<stdout>:{words}"]


def test_start_timeout_names_missing_workers(start: Callable[..., Any]) -> None:
    script = """
    import threading
    client = connect()
    if rank == 0:
        # With another timeout than rank 2 has, which comes when this join has been read: before what is sent after it.
        client.listen(lambda heard: tell("joined"))
        threading.Thread(target=client.join, args=("", 60), daemon=True).start()
        while client._asked is None:
            time.sleep(0.01)
        client.probe()
    elif rank == 2:
        while not os.path.exists(os.path.join(here, "joined")):
            time.sleep(0.01)
        client.join("", float(os.environ["FARANDOLE_START_TIMEOUT"]))
    time.sleep(60)
    """
    code, _, err = start(script, 3, "--start-timeout", "1").finish()
    assert code == 1
    assert "1 of 3 workers did not join within 1 s of the latest arrival: rank 1." in err


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import os, signal, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
child += "if os.fork(): os._exit(0)\\n"
child += f"open({here!r} + '/orphan{rank}.new', 'w').write(str(os.getpid()))\\n"
child += f"os.rename({here!r} + '/orphan{rank}.new', {here!r} + '/orphan{rank}')\\n"
child += "time.sleep(300)"
subprocess.run([sys.executable, "-c", child])
"""


def test_stubborn_orphans_in_other_sessions_are_ended(start: Callable[..., Any]) -> None:
    script = STUBBORN + MEET + "sys.exit(3) if rank == 0 else time.sleep(300)"
    job = start(script, 2)
    orphans = [int(job.told(f"orphan{rank}")) for rank in range(2)]
    code, _, err = job.finish()
    assert code == 3
    assert "others: rank 1 ended by the launcher (SIGKILL)" in err
    assert not any(Path(f"/proc/{pid}").exists() for pid in orphans)


def test_leftovers_of_successful_job_are_ended(start: Callable[..., Any]) -> None:
    script = 'subprocess.Popen(["sleep", "300"], start_new_session=True); print("bye")'
    begin = time.monotonic()
    code, out, err = start(script, 2).finish()
    assert (code, sorted(out.splitlines())) == (0, ["[0]<stdout>:bye", "[1]<stdout>:bye"])
    assert time.monotonic() - begin < 20 and errors(err) == []


def test_sigkill_of_the_launcher_leaves_nothing(start: Callable[..., Any]) -> None:
    job = start(STUBBORN + MEET + 'tell(f"ready{rank}"); time.sleep(300)', 3)
    for rank in range(3):
        job.told(f"orphan{rank}")
        job.told(f"ready{rank}")
    assert len(job.left()) == 7
    job.process.kill()
    until_gone(job)


def test_sigkill_of_the_agent_leaves_nothing(start: Callable[..., Any]) -> None:
    job = start(STUBBORN + MEET + 'tell(f"ready{rank}"); time.sleep(300)', 2)
    for rank in range(2):
        job.told(f"orphan{rank}")
        job.told(f"ready{rank}")
    os.kill(job.agent(), signal.SIGKILL)
    code, _, err = job.finish()
    assert code == 1
    assert "error: the agent of the workers died (SIGKILL)" in err


def test_sigterm_of_the_agent_leaves_nothing(start: Callable[..., Any]) -> None:
    job = start(STUBBORN + MEET + 'tell(f"ready{rank}"); time.sleep(300)', 2)
    for rank in range(2):
        job.told(f"ready{rank}")
    os.kill(job.agent(), signal.SIGTERM)
    code, _, _ = job.finish()
    assert code == 1


def until_gone(job: Any) -> None:
    deadline = time.monotonic() + 60
    while left := job.left():
        assert time.monotonic() < deadline, f"still alive: {left}"
        time.sleep(0.01)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_everything_in_order(start: Callable[..., Any], signum: signal.Signals, code: int) -> None:
    script = (
        """
def bye(*_):
    print("cleaned up")
    sys.exit(0)
signal.signal(signal.SIGTERM, bye)
"""
        + MEET
        + 'tell(f"ready{rank}"); time.sleep(60)'
    )
    job = start(script, 2)
    for rank in range(2):
        job.told(f"ready{rank}")
    job.process.send_signal(signum)
    returned, out, err = job.finish()
    assert returned == code
    assert sorted(out.splitlines()) == ["[0]<stdout>:cleaned up", "[1]<stdout>:cleaned up"]
    assert "ending 2 workers" in err and errors(err) == []


def test_a_second_ctrl_c_kills_at_once(start: Callable[..., Any]) -> None:
    script = (
        'signal.signal(signal.SIGTERM, lambda *_: tell("terminated"))\n'
        + MEET
        + 'tell("ready")\n'
        + "while True: time.sleep(60)"
    )
    job = start(script, 1)
    job.told("ready")
    begin = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    job.told("terminated")
    job.process.send_signal(signal.SIGINT)
    code, _, err = job.finish()
    assert time.monotonic() - begin < 4.5
    assert code == 130
    assert "Ctrl-C: ending 1 worker" in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([sys.executable, "no/such/script.py"], "there is no script 'no/such/script.py'"),
        (["surely-no-such-program"], "there is no program 'surely-no-such-program' on the PATH"),
        (["python train.py"], "\nhint: write the command without quotes"),
        ([sys.executable], "would read a script from the standard input, which workers do not have"),
        ([sys.executable, "-u", "-", "1"], "would read a script from the standard input, which workers do not have"),
    ],
)
def test_command_that_cannot_start_is_an_error_at_once(start: Any, command: list[str], message: str) -> None:
    begin = time.monotonic()
    code, out, err = start.command(command, 2).finish()
    assert time.monotonic() - begin < 20  # Before any timeout ends.
    assert (code, out) == (2, "")
    assert message in err and "\nhint: " in err


def test_program_that_kernel_refuses_is_an_error(start: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    code, _, err = start.command([str(broken)], 2).finish()
    assert code == 127
    assert "could not be started: [Errno 2]" in err


def test_verbose_prints_reasons_of_roster(start: Callable[..., Any]) -> None:
    code, _, err = start(MEET, 2, "--verbose").finish()
    assert code == 0
    assert "all 2 are here: generation 1 begins" in err
    assert "FARANDOLE_SECRET=***" in err


def test_modules_in_the_working_directory_do_not_hide_ours(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("selectors", "subprocess", "struct", "signal"):
        (project / f"{name}.py").write_text("raise SystemExit('shadowed')")
    command = tmp_path / "farandole"
    command.write_text("import sys\nfrom farandole.control.cli.main import main\nsys.exit(main())\n")
    process = subprocess.run(
        [sys.executable, str(command), "run", "-np", "1", "true"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert process.returncode == 0, process.stderr
