"""`farandole.run` from a test, which is as much of a main program as a notebook is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.errors import JobFailed, LaunchError, SpecError


def test_results_come_in_rank_order(capfd: pytest.CaptureFixture[str]) -> None:
    def place(greeting: str, *, name: str) -> tuple[str, int]:
        print(greeting, name)
        return name, int(os.environ["FARANDOLE_RANK"])

    assert farandole.run(place, ("hello",), {"name": "x"}, 3) == [("x", 0), ("x", 1), ("x", 2)]
    assert sorted(capfd.readouterr().out.splitlines()) == [f"[{rank}]<stdout>:hello x" for rank in range(3)]


def test_none_is_a_result() -> None:
    assert farandole.run(print, num_proc=2) == [None, None]


def test_large_arguments_and_results() -> None:
    data = os.urandom(80 * 1024 * 1024)
    (result,) = farandole.run(lambda piece: piece + b"x", (data,), num_proc=1)
    assert result == data + b"x"


def test_exception_of_worker_is_raised_with_cause() -> None:
    def fail() -> None:
        if os.environ["FARANDOLE_RANK"] == "1":
            raise ValueError("boom")
        signal.pause()

    with pytest.raises(JobFailed, match=r"rank 1 on host .* failed first") as caught:
        farandole.run(fail, num_proc=2)
    assert isinstance(caught.value, LaunchError) and isinstance(caught.value, RuntimeError)
    assert (caught.value.rank, caught.value.exit_code) == (1, 1)
    assert "ValueError: boom" in str(caught.value) and "in fail" in str(caught.value)
    assert "call.py" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_exception_that_cannot_be_pickled_is_raised_as_text() -> None:
    def fail() -> None:
        class Stubborn(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("no")

        raise Stubborn("nevertheless")

    with pytest.raises(JobFailed, match="Stubborn: nevertheless") as caught:
        farandole.run(fail)
    assert caught.value.__cause__ is None


def test_function_that_exits_has_no_result() -> None:
    with pytest.raises(JobFailed, match="rank 0 exited with code 0 before the function returned"):
        farandole.run(lambda: os._exit(0))


def test_killed_worker_is_an_error() -> None:
    with pytest.raises(JobFailed, match="killed by SIGKILL") as caught:
        farandole.run(lambda: os.kill(os.getpid(), signal.SIGKILL), num_proc=1)
    assert caught.value.exit_code == 137


def test_environment_and_output_dir(tmp_path: Path) -> None:
    def words() -> str:
        print("kept")
        return " ".join(os.environ[name] for name in ("WORDS", "NUMBER"))

    assert farandole.run(words, num_proc=1, env={"WORDS": "a b", "NUMBER": 2}, output_dir=tmp_path) == ["a b 2"]
    assert (tmp_path / "rank.0" / "stdout").read_text() == "kept\n"


def test_in_a_running_loop_as_in_a_notebook() -> None:
    async def cell() -> list[int]:
        return farandole.run(pow, (2, 5), num_proc=2)

    assert asyncio.run(cell()) == [32, 32]


def test_invalid_launches_are_refused() -> None:
    with pytest.raises(ValueError, match="0 workers") as caught:
        farandole.run(print, num_proc=0)
    assert isinstance(caught.value, SpecError)


def run_script(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "main.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd="/")


def test_functions_of_the_main_script_and_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("class Thing:\n    value = 7\n")
    done = run_script(
        tmp_path,
        """
        import farandole, beside

        def train(thing):
            return thing.value, beside.Thing()

        print([value for value, _ in farandole.run(train, (beside.Thing(),), num_proc=2)])
        """,
    )
    assert (done.stdout, done.stderr) == ("[7, 7]\n", "")


def test_job_on_another_host_goes_on_after_its_program_was_stopped_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n')  # Its last argument, on this host.
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = run_script(
        tmp_path,
        """
        import os, signal, time, farandole

        def stop_my_launcher(pid):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            os.kill(pid, signal.SIGCONT)
            time.sleep(1)
            return "done"

        print(farandole.run(stop_my_launcher, (os.getpid(),), num_proc=1, hosts="192.0.2.1:1"))
        """,
    )
    assert (done.stdout, done.stderr) == ("['done']\n", "")


def test_ctrl_c_ends_the_workers(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal, farandole

        def interrupt_my_launcher(pid):
            os.kill(pid, signal.SIGINT)
            signal.pause()

        try:
            farandole.run(interrupt_my_launcher, (os.getpid(),), num_proc=1)
        except KeyboardInterrupt:
            print("interrupted")
        """,
    )
    assert done.stdout == "interrupted\n"
    assert "ending 1 worker" in done.stderr
