"""The next step for each kind of error, and whether it is possible as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import farandole.errors
from farandole.control.launcher.failure.failure_text import render_failure
from farandole.control.launcher.failure.hints import _BY_ERROR
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.function import call_command
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.output.console import OutputOptions
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import Identity, LaunchPlan

ENDED_AT = 10.0


def plan_of(*command: str, size: int = 2, directory: str = "/home/me", seen: bool = False) -> LaunchPlan:
    machine = Machine("earth", 8, 0, directory, {})
    output = OutputOptions(is_seen_with_report=seen)
    return make_plan(LaunchSpec(command, size, output=output), machine, Identity())


def report_of(script: str, directory: Path, *arguments: str) -> tuple[str, str]:
    """Run a script, and return the report of its failure and the hint in it."""
    (directory / "train.py").write_text(script)
    command = (sys.executable, "train.py", *arguments)
    done = subprocess.run(command, cwd=directory, capture_output=True, timeout=60)
    first = WorkerRecord(0, exit_code=done.returncode, exit_time=9.0, stderr_tail=bytearray(done.stderr))
    text = render_failure(plan_of(*command, directory=str(directory)), [first], first, ENDED_AT)
    return text, text.rpartition("\nhint: ")[2]


def follow(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], cwd=directory, capture_output=True, text=True, timeout=60)


def test_unreadable_script_has_hint(tmp_path: Path) -> None:
    text, hint = report_of("x = (1\n", tmp_path)
    assert "it exited with code 1 (SyntaxError: '(' was never closed)\n" in text and "no Python traceback" not in text
    found = re.fullmatch(r"correct that line; (.+) checks it alone", hint)
    assert found is not None
    assert "train.py" in follow(found[1], tmp_path).stderr
    (tmp_path / "train.py").write_text("x = 1\n")
    assert follow(found[1], tmp_path).returncode == 0


def test_missing_module_has_hint(tmp_path: Path) -> None:
    _, hint = report_of("import surely_not.there\n", tmp_path)
    found = re.search(r"which the workers used: (.+)", hint)
    assert found is not None
    assert "No module named 'surely_not'" in follow(found[1], tmp_path).stderr
    (tmp_path / "surely_not.py").touch()
    assert follow(found[1], tmp_path).returncode == 0


LIMITED = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, r.getrlimit(r.RLIMIT_FSIZE)[1]))"


def test_limit_of_the_size_of_files_has_hint(tmp_path: Path) -> None:
    text, hint = report_of(f"{LIMITED}\nimport farandole.numpy as hvd\nhvd.init()\n", tmp_path)
    assert "File too large" in text
    limit_now = f"{sys.executable} -c 'import resource as r; print(r.getrlimit(r.RLIMIT_FSIZE)[0])'"
    found = re.search(r"(ulimit -f \w+), in the shell", hint)
    assert found is not None
    assert follow(f"ulimit -Sf 1000; {found[1]}; {limit_now}", tmp_path).stdout == "-1\n"


def test_missing_module_of_the_command_has_hint(tmp_path: Path) -> None:
    """Python prints no traceback for `python -m NAME`."""
    said = b"/usr/bin/python: No module named surely_not\n"
    first = WorkerRecord(0, exit_code=1, exit_time=9.0, stderr_tail=bytearray(said))
    plan = plan_of(sys.executable, "-m", "surely_not", directory=str(tmp_path))
    hint = render_failure(plan, [first], first, ENDED_AT).rpartition("\nhint: ")[2]
    found = re.search(r"which the workers used: (.+)", hint)
    assert found is not None and found[1].endswith("-c 'import surely_not'")


def test_refused_arguments_have_hint(tmp_path: Path) -> None:
    script = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs')\nparser.parse_args()\n"
    )
    _, hint = report_of(script, tmp_path, "--epoks", "3")
    found = re.fullmatch(r"it rejected its arguments: (.+) lists them", hint)
    assert found is not None and "--epochs" in follow(found[1], tmp_path).stdout


def test_unusable_setting_has_hint(tmp_path: Path) -> None:
    _, hint = report_of("from farandole.errors import SettingError\nraise SettingError('no number')\n", tmp_path)
    assert hint.startswith("farandole config shows where the value comes from")
    assert follow(f"FARANDOLE_LOG_LEVEL=loud {sys.executable} -m farandole config", tmp_path).returncode == 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("farandole.errors.MismatchError: shapes", "the message says what each rank sent: let all ranks make the same"),
        ("farandole.errors.StalledError: rank 1", "What the missing ranks do"),
        ("farandole.errors.ShutDownError: rank 1 has shut down, so collectives", "the same number of steps"),
        ("farandole.errors.NotInitializedError: farandole has not been", "call hvd.init() once"),
        ("farandole.errors.InvalidRequestError: root 9", "that call is invalid"),
        ("farandole.errors.TimelineError: /x", "--timeline FILE"),
        ("farandole.errors.CheckpointError: none", "--checkpoint-dir DIR"),
        ("farandole.errors.LibraryError: no library", "farandole doctor"),
        ("farandole.errors.StartError: no connection", "farandole test"),
        ("farandole.errors.StateLostError: all", "--checkpoint-dir DIR"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "nvidia-smi"),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: x", "nvidia-smi"),
        ("RuntimeError: No CUDA GPUs are available", "farandole doctor"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "farandole doctor"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "farandole doctor"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "one GPU for each worker of a host"),
        ("farandole.errors.HorovodInternalError: NCCL: an allreduce failed with 'x'", "--nccl-log logs/rank.*/std*"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, Duplicate GPU detected", "one GPU for each"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data'", "run in /home/me, as this user"),
        ("ValueError: boom", "check whether it also fails by itself: -np 1"),
    ],
)
@pytest.mark.parametrize("code", [1, -6, -15])
def test_each_error_has_its_own_next_step(error: str, words: str, code: int) -> None:
    first = WorkerRecord(0, exit_code=code, exit_time=11.0, report_time=9.0, exception=error)
    text = render_failure(plan_of("python", "train.py"), [first], first, ENDED_AT)
    assert words in text.rpartition("\nhint: ")[2]


def test_all_names_of_errors_are_real() -> None:
    named = {name for pattern, _ in _BY_ERROR for name in re.findall(r"^errors\\\.(\w+)", pattern)}
    assert named and all(issubclass(getattr(farandole.errors, name), Exception) for name in named)


def test_single_worker_gets_no_hint_to_run_alone() -> None:
    first = WorkerRecord(0, exit_code=1, exit_time=9.0, exception="ValueError: boom")
    text = render_failure(plan_of("python", "train.py", size=1), [first], first, ENDED_AT)
    assert "check whether it also fails by itself: python train.py" in text


@pytest.mark.parametrize(
    ("first", "hint"),
    [
        ({"exit_code": 1, "exception": "ValueError: boom"}, "check whether the function fails with one worker, too"),
        ({"exit_code": -6}, "to see where each thread was, set PYTHONFAULTHANDLER=1 in the environment of the workers"),
        ({"exit_code": 3}, "the function chose this exit code itself; look for exit(3) in it"),
    ],
)
def test_hint_about_a_function_names_no_options_of_a_command_line(first: dict[str, Any], hint: str) -> None:
    record = WorkerRecord(0, exit_time=9.0, **first)
    text = render_failure(plan_of(*call_command()), [record], record, ENDED_AT)
    assert text.rpartition("\nhint: ")[2] == hint


def test_a_lost_host_is_reached_as_the_launcher_reaches_it() -> None:
    first = WorkerRecord(0, host_lost="nothing was heard from it", exit_time=9.0)
    text = render_failure(plan_of("true"), [first], first, ENDED_AT, access=SshOptions(port=2222))
    assert "ping earth; ssh -p 2222 earth uptime." in text
    by_call = render_failure(plan_of("true"), [first], first, ENDED_AT, access=DialedHosts(lost="ask {host}'s owner"))
    assert by_call.endswith("\nhint: ask earth's owner")


def test_shown_traceback_is_not_repeated() -> None:
    traceback = b"Traceback (most recent call last):\n  File 'a.py'\nValueError: boom\n"
    printed = WorkerRecord(0, exit_code=1, exit_time=9.0, stderr_tail=bytearray(traceback))
    text = render_failure(plan_of("true", seen=True), [printed], printed, ENDED_AT)
    assert text.startswith("error: rank 0 on host earth failed first: it exited with code 1 (ValueError: boom)\n")
    assert "File 'a.py'" not in text and "its traceback is above, in the output of rank 0\n" in text
    ended_before = WorkerRecord(0, exit_code=-15, exit_time=11.0, report_time=9.0, traceback=traceback.decode())
    assert "File 'a.py'" in render_failure(plan_of("true", seen=True), [ended_before], ended_before, ENDED_AT)
