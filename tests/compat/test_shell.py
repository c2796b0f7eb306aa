"""Shell commands and the like, which Horovod's tests and extensions import from its runner."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import drop_in
import pytest

from farandole.compat.runner import js_run, launch, lsf, mpi_run, safe_shell_exec


def prefixed(text: str, prefix: str | None, index: int | None, timestamps: bool = False) -> str:
    connection, writer = multiprocessing.get_context("spawn").Pipe(duplex=False)
    os.write(writer.fileno(), text.encode())
    writer.close()
    out = io.StringIO()
    safe_shell_exec.prefix_connection(connection, out, prefix, index, timestamps)
    connection.close()
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\ntwo\n", "[7]<p>:one\n[7]<p>:two\n"),
        ("one\ntwo", "[7]<p>:one\n[7]<p>:two"),
        ("one\rtwo\n", "[7]<p>:one\r[7]<p>:two\n"),
        ("∀∁∂\n⌚⌛\n", "[7]<p>:∀∁∂\n[7]<p>:⌚⌛\n"),
        ("█▓▒" * 3000 + "\nx\n", "[7]<p>:" + "█▓▒" * 3000 + "\n[7]<p>:x\n"),
    ],
)
def test_lines_of_a_connection(text: str, expected: str) -> None:
    assert prefixed(text, "p", 7) == expected
    for prefix, index in ((None, 7), ("p", None), (None, None)):
        assert prefixed(text, prefix, index) == text
        assert prefixed(text, prefix, index, timestamps=True) == text


def test_lines_of_a_connection_with_time() -> None:
    assert re.fullmatch(r"\w{3} \w{3} .{8,20} \d{4}\[7\]<p>:one\n", prefixed("one\n", "p", 7, timestamps=True))


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("echo hello", 0, "hello\n", ""),
        ("echo hello >&2", 0, "", "hello\n"),
        ("printf hello", 0, "hello", ""),
        ("false", 1, "", ""),
        ("kill -9 $$", 137, "", ""),
        ("echo $WORD; exit 3", 3, "hi\n", ""),
        ("sleep 60 & echo started", 0, "started\n", ""),  # What it leaves behind goes with it.
    ],
)
def test_a_shell_command(command: str, code: int, out: str, err: str) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    environment = {**os.environ, "WORD": "hi"}
    assert safe_shell_exec.execute(command, environment, stdout, stderr) == code
    assert (stdout.getvalue(), stderr.getvalue()) == (out, err)


def test_an_event_ends_a_shell_command_and_what_it_started() -> None:
    event = threading.Event()
    out = io.StringIO()

    class Started(io.StringIO):
        def write(self, text: str) -> int:
            event.set()
            return out.write(text)

    began = time.monotonic()
    command = "sleep 60 & echo $!; wait"
    assert safe_shell_exec.execute(command, stdout=Started(), stderr=io.StringIO(), index=2, events=[event]) == 143
    assert time.monotonic() - began < 30
    pid = out.getvalue().removeprefix("[2]<stdout>:").strip()
    assert pid.isdecimal()
    wait_for_end(pid)


def test_a_shell_command_dies_with_its_python(tmp_path: Path) -> None:
    code = """
        from farandole.compat.runner import safe_shell_exec
        safe_shell_exec.execute("echo $$ > child.new; mv child.new child; exec sleep 60")
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=drop_in.environment(), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "child").exists():
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.01)
    child = (tmp_path / "child").read_text().strip()
    parent.kill()
    parent.communicate(timeout=30)
    wait_for_end(child)


def test_all_processes_of_a_shell_command_die_with_its_python(tmp_path: Path) -> None:
    # The shell waits for its children; the second one begins a session of its own, and the third one is an orphan.
    command = "sleep 60 & echo $! > a; setsid sleep 60 & echo $! > b; (setsid sleep 60 & echo $! > c); touch all; wait"
    code = f"""
        from farandole.compat.runner import safe_shell_exec
        safe_shell_exec.execute({command!r})
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=drop_in.environment(), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "all").exists():
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.01)
    pids = [(tmp_path / name).read_text().strip() for name in ("a", "b", "c")]
    parent.kill()
    parent.communicate(timeout=30)
    for pid in pids:
        wait_for_end(pid)


def test_a_shell_command_that_ignores_sigterm_is_killed_with_its_python(tmp_path: Path) -> None:
    code = """
        from farandole.compat.runner import safe_shell_exec
        safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = 0.1
        safe_shell_exec.execute("trap '' TERM; echo $$ > child.new; mv child.new child; sleep 60; sleep 60")
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=drop_in.environment(), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "child").exists():
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.communicate(timeout=30)
    wait_for_end((tmp_path / "child").read_text().strip())


def wait_for_end(pid: str) -> None:
    """Wait until a process has ended; its new parent may be slow to take note of it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if ") Z" in Path("/proc", pid, "stat").read_text():
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_workers_are_not_started_through_jsrun() -> None:
    with pytest.raises(NotImplementedError, match="farandole-horovod does not start workers through"):
        js_run.js_run(None, None, {}, ["true"])


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("mpirun (Open MPI) 4.1.4", 0, mpi_run._OMPI_IMPL),
        ("IBM Spectrum MPI", 0, mpi_run._SMPI_IMPL),
        ("HYDRA build details:", 0, mpi_run._MPICH_IMPL),
        ("Intel(R) MPI Library", 0, mpi_run._IMPI_IMPL),
        ("a new one", 0, mpi_run._UNKNOWN_IMPL),
        ("Open MPI", 1, mpi_run._MISSING_IMPL),
    ],
)
def test_which_mpi_is_installed(says: str, code: int, expected: str, tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert mpi_run._get_mpi_implementation(environment) == expected
    assert mpi_run.mpi_available(environment) == (expected not in (mpi_run._UNKNOWN_IMPL, mpi_run._MISSING_IMPL))
    assert mpi_run.is_open_mpi(environment) == (expected == mpi_run._OMPI_IMPL)
    assert mpi_run.is_mpich(environment) == (expected == mpi_run._MPICH_IMPL)


def test_lsf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LSB_JOBID", raising=False)
    assert not lsf.LSFUtils.using_lsf()
    monkeypatch.setenv("LSB_JOBID", "1")
    assert lsf.LSFUtils.using_lsf()


# Horovod's own tests compare these whole texts.
NO_GLOO = (
    "Gloo support has not been built.  If this is not expected, ensure CMake is installed "
    "and reinstall Horovod with HOROVOD_WITH_GLOO=1 to debug the build error."
)
NO_MPI = (
    "MPI support has not been built.  If this is not expected, ensure MPI is installed "
    "and reinstall Horovod with HOROVOD_WITH_MPI=1 to debug the build error."
)
NO_LSF = (
    "Horovod did not detect an LSF job.  The jsrun launcher can only be used in that environment. "
    "Please, pick a different launcher for other environments."
)
NEITHER = (
    "Neither MPI nor Gloo support has been built. Try reinstalling Horovod ensuring that "
    "either MPI is installed (MPI) or CMake is installed (Gloo)."
)


@pytest.mark.parametrize(
    ("flags", "built", "lsf_and_jsrun", "expected"),
    [
        ((None, None, None), (True, True), False, "mpi"),
        ((None, None, None), (True, True), True, "js"),
        ((None, None, None), (True, False), True, "gloo"),
        ((None, None, None), (False, False), False, NEITHER),
        ((True, None, None), (True, True), True, "gloo"),
        ((True, None, None), (False, True), True, NO_GLOO),
        ((None, True, None), (True, True), True, "mpi"),
        ((None, True, None), (True, False), True, NO_MPI),
        ((None, None, True), (True, True), True, "js"),
        ((None, None, True), (True, True), False, NO_LSF),
        ((None, None, True), (True, False), True, NO_MPI),
    ],
)
def test_the_controller_that_is_chosen(
    flags: tuple[bool | None, bool | None, bool | None],
    built: tuple[bool, bool],
    lsf_and_jsrun: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "gloo_built", lambda verbose: built[0])
    monkeypatch.setattr(launch, "mpi_built", lambda verbose: built[1])
    monkeypatch.setattr(lsf.LSFUtils, "using_lsf", staticmethod(lambda: lsf_and_jsrun))
    monkeypatch.setattr(launch, "is_jsrun_installed", lambda: lsf_and_jsrun)
    called: list[str] = []
    gloo, mpi, js = (lambda name=name: called.append(name) for name in ("gloo", "mpi", "js"))
    arguments = (flags[0], gloo, flags[1], mpi, flags[2], js, 2)
    if expected in ("gloo", "mpi", "js"):
        launch.run_controller(*arguments)
        assert called == [expected]
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            launch.run_controller(*arguments)
        assert called == []
