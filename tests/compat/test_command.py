"""horovodrun as a process: what it starts, prints, keeps, and how it ends. Few, as each costs a launch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import drop_in
import pytest

import horovod

Run = Callable[..., drop_in.Ran]

# A training script in Horovod's own style.
TRAIN = """
    import torch
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none, op=hvd.Average
    )
    inputs = torch.arange(12.0).reshape(4, 3) + hvd.rank()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
    weights = hvd.allgather(model.weight.detach(), name="weights")
    assert torch.equal(weights, weights[:1].expand_as(weights)), weights
    print(f"rank {hvd.rank()} of {hvd.size()}, local {hvd.local_rank()} of {hvd.local_size()}")
"""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_script_for_horovod_runs_unchanged(horovodrun: Run, size: int) -> None:
    done = horovodrun("-np", str(size), "-H", f"localhost:{size}", script=TRAIN)
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}]<stdout>:rank {rank} of {size}, local {rank} of {size}" for rank in range(size)]
    assert sorted(done.stdout.splitlines()) == expected


def test_a_script_runs_alone_without_a_launcher(tmp_path: Path) -> None:
    assert drop_in.python(TRAIN).stdout == "rank 0 of 1, local 0 of 1\n"


SHOW = "env | grep -E '^(HOROVOD|NCCL|PYTHONUNBUFFERED|MINE)' | sort"


def test_variables_of_workers(horovodrun: Run) -> None:
    flags = ["--fusion-threshold-mb", "2", "--timeline-filename", "t.json", "--log-level", "INFO"]
    hosts = ["-np", "3", "-H", "localhost:2,127.0.0.1:4"]
    done = horovodrun(*hosts, *flags, "sh", "-c", SHOW, env={"MINE": "1", "HOROVOD_CACHE_CAPACITY": "7"})
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^\[(\d)\]<stdout>:(\w+)=(.*)$", done.stdout, re.MULTILINE)
    workers = [{name: value for worker, name, value in lines if worker == str(rank)} for rank in range(3)]
    places = ["localhost 0 3 0 2 0 2", "localhost 1 3 1 2 0 1", "127.0.0.1 2 3 0 1 1 2"]
    names = ["HOSTNAME", "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [" ".join(worker[f"HOROVOD_{name}"] for name in names) for worker in workers] == places
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_FUSION_THRESHOLD": "2097152",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_CACHE_CAPACITY": "7",
        "MINE": "1",
    }
    for worker in workers:
        assert worker.items() >= common.items()
        assert worker["HOROVOD_GLOO_RENDEZVOUS_PORT"].isdecimal()


def test_fewer_workers_than_slots_start_exactly_that_many(horovodrun: Run) -> None:
    done = horovodrun("-np", "2", "-H", "localhost:4", "echo", "hi")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:hi", "[1]<stdout>:hi"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "5", "-H", "localhost:4", "true"], "Requested more processes (5) than there are available slots (4)"),
        (["-np", "2", "-H", "localhost", "true"], "Invalid host input"),
        (["-np", "2", "-H", "x.invalid:2", "true"], "x.invalid: no host has this name"),
        (["-np", "1", "--min-np", "2", "true"], "a start with 1 worker is outside the job's limits"),
        (["-np", "2", "--min-np", "0", "true"], "cannot run with 0 workers"),
        (["-np", "2", "--min-np", "2", "--max-np", "1", "true"], "the maximum of 1 workers is below the minimum of 2"),
        (["-np", "0", "true"], "0 workers cannot be started"),
        (["-np", "1", "--cycle-time-ms", "-1", "true"], "cycle_time_ms=-1.0 must be >= 0"),
        (["-np", "1", "surely-no-such-program"], "no program 'surely-no-such-program'"),
        (
            ["-np", "1", "--start-timeout", "0", "true"],
            "--start-timeout is 0, but should be a number of seconds above 0",
        ),
        (["-np", "1"], "no command to run"),
    ],
)
def test_a_command_that_cannot_start_is_reported_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from farandole.compat.runner.launch import run_commandline

    assert run_commandline(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ") and message in told.err


# --- output -----------------------------------------------------------------------------------------------------------

SPEAK = "printf 'one\\rtwo\\nrest'; printf 'wrong\\n' >&2"


@pytest.mark.parametrize(("size", "folders"), [(1, ["rank.0"]), (11, [f"rank.{rank:02}" for rank in range(11)])])
def test_files_and_console_get_the_same_lines(horovodrun: Run, tmp_path: Path, size: int, folders: list[str]) -> None:
    done = horovodrun("-np", str(size), "--output-filename", "a/logs", "sh", "-c", SPEAK)
    assert done.returncode == 0, done.stderr
    logs = tmp_path / "a" / "logs"
    assert sorted(path.name for path in logs.iterdir()) == folders
    for rank, folder in enumerate(folders):
        kept = (logs / folder / "stdout").read_bytes().decode()
        assert kept == f"[{rank}]<stdout>:one\r[{rank}]<stdout>:two\n[{rank}]<stdout>:rest\n"
        # Python reads the console's carriage returns as line ends.
        assert all(line in done.stdout.splitlines() for line in kept.splitlines())
        assert (logs / folder / "stderr").read_text() == f"[{rank}]<stderr>:wrong\n"
        assert f"[{rank}]<stderr>:wrong" in done.stderr.splitlines()


def test_timestamps(horovodrun: Run) -> None:
    done = horovodrun("-np", "1", "-prefix-timestamp", "echo", "hi")
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hi\n", done.stdout)


def test_verbose_reports_events_and_options_without_effect(horovodrun: Run) -> None:
    flags = ("--verbose", "--cycle-time-ms", "2", "--jsrun")
    done = horovodrun("-np", "1", *flags, "true", env={"HOROVOD_CCL_CACHE": "1"})
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Remote host found: ",
        "All hosts are local, finding the interfaces with address 127.0.0.1",
        "Local interface found lo",
    ]
    assert "no effect here: HOROVOD_CCL_CACHE: oneCCL is not used\n" in done.stderr
    assert "no effect here: HOROVOD_CYCLE_TIME: the engine has no cycle\n" in done.stderr
    assert done.stderr.count("no effect here") == 2
    assert "note: --jsrun: " in done.stderr
    quiet = horovodrun("-np", "1", "--cycle-time-ms", "2", "true")
    assert (quiet.stdout, quiet.stderr) == ("", "")


# --- failure ------------------------------------------------------------------------------------------------------

# Rank 1 fails once rank 0 is there; rank 0 has a child that takes no notice of SIGTERM.
FAIL = """
    import os, pathlib, subprocess, sys, time
    ready = pathlib.Path("ready")
    if os.environ["HOROVOD_RANK"] == "0":
        stubborn = "import pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        child = subprocess.Popen([sys.executable, "-c", stubborn + "pathlib.Path('ready').touch(); time.sleep(60)"])
        pathlib.Path("child").write_text(str(child.pid))
        time.sleep(60)
    while not ready.exists():
        time.sleep(0.01)
    sys.exit(7)
"""


def test_a_failure_ends_the_others_and_is_reported_as_by_horovod(horovodrun: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    done = horovodrun("-np", "2", script=FAIL)
    assert done.returncode == 1
    told = done.stderr.splitlines()
    words = [
        "Process 1 exit with status code 7.",
        "Terminating remaining workers after failure of Process 1.",
        "Process 0 exit with status code 143.",
    ]
    assert [line for line in told if line.startswith(("Process", "Terminating")) and line in words] == words
    assert (
        "RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job "
        "to be terminated. The first process to do so was:\nProcess name: 1\nExit code: 7\n"
    ) in done.stderr
    assert "error: rank 1 on host localhost failed first" in done.stderr
    # SIGTERM, five seconds for the child that does not want to, SIGKILL.
    assert 4 < time.monotonic() - began < 30
    assert not Path("/proc", (tmp_path / "child").read_text()).exists()


def test_a_worker_that_a_signal_ends_has_128_and_its_number(horovodrun: Run) -> None:
    done = horovodrun("-np", "1", "sh", "-c", "kill -9 $$")
    assert done.returncode == 1
    assert "Process 0 exit with status code 137." in done.stderr
    assert "Exit code: 137\n" in done.stderr


def test_sigterm_ends_all_workers(tmp_path: Path) -> None:
    code = "import pathlib, os, time; pathlib.Path('ready.' + os.environ['RANK']).touch(); time.sleep(60)"
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", code]
    mark = f"TEST_MARK={tmp_path}"
    process = subprocess.Popen(
        command, cwd=tmp_path, env=drop_in.environment(TEST_MARK=str(tmp_path)), stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / f"ready.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143
    assert carrying(mark) == []


def carrying(variable: str) -> list[int]:
    """Return the processes that carry `NAME=value` in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if variable.encode() in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except OSError:
            continue
    return found


# --- what is there --------------------------------------------------------------------------------------------------

BUILD = f"""\
Horovod v{horovod.__version__}:

Available Frameworks:
    [{"X" if find_spec("tensorflow") else " "}] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [X] Gloo
"""


def test_check_build(horovodrun: Run) -> None:
    done = horovodrun("--check-build")
    assert (done.returncode, done.stdout) == (0, BUILD)
    assert done.stderr.startswith("note: Gloo stands for ")


def test_check_build_claims_nothing_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('broken')\n")
    code = "from farandole.compat.runner.launch import parse_args; parse_args(['-cb'])"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), str(drop_in.PACKAGE)])
    assert drop_in.python(code, PYTHONPATH=path).stdout == BUILD.replace("[X] PyTorch", "[ ] PyTorch")
