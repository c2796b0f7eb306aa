"""Jobs on hosts that dial, as the worker processes of another program do: the program here is this test."""

from __future__ import annotations

import io
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from farandole.base.installed import own_environment
from farandole.control.agent.dialer_process import DialerProcess
from farandole.control.launcher.agents.reception import HostsMissing, Reception
from farandole.control.launcher.function import BackgroundJob, call_command, pickle_call, results_of
from farandole.control.launcher.job.elastic import DIAL, Elastic
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer
from farandole.errors import JobFailed

SECRET = b"0123456789abcdef"
SECONDS = 120.0


class Job:
    """A job whose launcher runs in a thread of this process."""

    def __init__(self, function: Callable[..., Any], *args: Any, elastic: Elastic | None = None, size: int = 2) -> None:
        self.reception = Reception([0], lambda: SECRET, start_timeout=SECONDS)
        self.address = f"127.0.0.1:{self.reception.listen()}"
        self.dialers: list[DialerProcess] = []
        self.printed = io.StringIO()
        # On a busy machine, a host may be silent for a while, and workers may come one long after the other.
        patient = {"start_timeout": SECONDS}
        spec = LaunchSpec(call_command(), size, elastic=elastic, host_timeout=SECONDS, settings=patient)
        # Workers get nothing from the environment of the launcher, which may be on another machine.
        machine = Machine("driver", 1, 0, "/", {})
        console = Console(text_writer(self.printed), text_writer(self.printed))
        self.values: list[tuple[int | None, Any]] = []
        values = self.values

        class Values(Observer):
            def value_reported(self, rank: int | None, payload: bytes) -> None:
                values.append((rank, pickle.loads(payload)))

        self.background = BackgroundJob()
        self.background.begin(
            launch(
                spec,
                machine,
                console,
                started=self.background.started,
                call=pickle_call(function, args, {}),
                observer=Values(),
                reception=self.reception,
            )
        )

    @property
    def outcome(self) -> Future[JobOutcome]:
        return self.background.outcome

    def dial(self, name: str, **options: Any) -> DialerProcess:
        self.dialers.append(DialerProcess(self.address, SECRET, name, **options))
        return self.dialers[-1]

    def results(self) -> list[Any]:
        return results_of(self.outcome.result(SECONDS))


@pytest.fixture
def job() -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(*arguments: Any, **options: Any) -> Job:
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    yield start
    for each in jobs:
        if not each.outcome.done():
            each.background.stop()
            each.background.stop()
            each.outcome.exception(SECONDS)
        for dialer in each.dialers:
            dialer.end()


def place() -> tuple[int, int, int, str, str, str | None]:
    import farandole.numpy as fd

    fd.init()
    total = fd.allreduce([float(fd.rank())], op=fd.Sum)
    assert float(total[0]) == sum(range(fd.size()))
    return (
        fd.rank(),
        fd.local_rank(),
        fd.local_size(),
        os.environ["FARANDOLE_LOCAL_SIZE"],
        os.getcwd(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def test_fixed_job_runs_on_hosts_that_dial(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(place, size=3)
    # The second attempt of a task, which waits until the first has ended.
    for name, slots, devices in (("10", 1, ["7"]), ("9", 2, ["4", "5"]), ("9", 2, ["4", "5"])):
        one.dial(name, slots=slots, devices=devices, directory=str(tmp_path))
    expected = [(rank, rank, 3, "3", str(tmp_path), "4,5,7") for rank in range(3)]
    assert one.results() == expected, "one machine, whose hosts are in the natural order of their names"
    assert "generation" not in one.printed.getvalue(), one.printed.getvalue()


def reports() -> int:
    import farandole

    for step in range(3):
        farandole.report({"rank": int(os.environ["FARANDOLE_RANK"]), "step": step})
    return 7


@pytest.mark.parametrize("elastic", [None, Elastic(2, 2, discovery=DIAL)])
def test_values_are_reported_to_observer(job: Callable[..., Job], elastic: Elastic | None) -> None:
    one = job(reports, elastic=elastic)
    one.dial("a", slots=2)
    assert one.results() == [7, 7]
    assert sorted(one.values, key=str) == [
        (rank if elastic is None else None, {"rank": rank, "step": step}) for rank in range(2) for step in range(3)
    ], "a worker that has not joined has no rank yet"


def fails_in_rank_1() -> None:
    import farandole.numpy as fd

    fd.init()
    if fd.rank() == 1:
        raise ValueError("as told")
    fd.barrier()


def test_failure_in_fixed_job_is_reported_as_elsewhere(job: Callable[..., Job]) -> None:
    one = job(fails_in_rank_1)
    for name in ("a", "b"):
        one.dial(name)
    with pytest.raises(
        JobFailed, match=r"rank 1 on host b failed first: it exited with code 1 \(ValueError: as told\)"
    ) as caught:
        one.results()
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.rank == 1
    assert [dialer.wait(SECONDS) for dialer in one.dialers] == [0, 0], "nothing is left on the hosts"


def waits(path: str) -> None:
    Path(path, f"{os.getpid()}").touch()
    time.sleep(SECONDS)


def pids_in(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + SECONDS
    while len(found := list(folder.iterdir())) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(each.name) for each in found]


def await_end_of(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a worker lives"
        time.sleep(0.02)


def test_dialer_and_its_workers_end_with_parent(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(waits, str(tmp_path), size=1)
    code = f"""
import os, time
from farandole.control.agent.dialer_process import DialerProcess
dialer = DialerProcess({one.address!r}, {SECRET!r}, "a")
print(dialer.pid, flush=True)
time.sleep({SECONDS})
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=own_environment()
    ) as parent:
        assert parent.stdout is not None
        dialer = int(parent.stdout.readline())
        workers = pids_in(tmp_path, 1)
        parent.kill()
        await_end_of([dialer, *workers])
    with pytest.raises(JobFailed, match="the connection to its agent ended"):
        one.results()


def test_workers_end_with_dialer_that_is_killed(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(waits, str(tmp_path), size=2)
    dialers = [one.dial(name) for name in ("a", "b")]
    workers = pids_in(tmp_path, 2)
    os.kill(dialers[0].pid, signal.SIGKILL)
    with pytest.raises(JobFailed, match="the connection to its agent ended"):
        one.results()
    await_end_of(workers)


def test_job_ends_when_too_few_hosts_dial() -> None:
    reception = Reception([0], lambda: SECRET, start_timeout=0.2)
    background = BackgroundJob()
    background.begin(
        launch(
            LaunchSpec(call_command(), 2),
            Machine("driver", 1, 0, "/", {}),
            Console(text_writer(io.StringIO()), text_writer(io.StringIO())),
            started=background.started,
            reception=reception,
        )
    )
    with pytest.raises(HostsMissing, match=r"only 0 of 2 slots had dialed this launcher after 0\.2 s"):
        background.outcome.result(SECONDS)


def test_waiting_for_hosts_ends_when_they_will_not_come(job: Callable[..., Job]) -> None:
    one = job(place)
    one.reception.give_up("the cluster has no room")
    with pytest.raises(HostsMissing, match="the cluster has no room"):
        one.results()


def until_three(path: str) -> int:
    import farandole.numpy as fd
    from farandole.worker.elastic.run_decorator import run
    from farandole.worker.elastic.state import ObjectState

    fd.init()

    @run
    def train(state: ObjectState) -> int:
        while True:
            done = fd.allreduce([float(Path(path, "go").exists())], op=fd.Min, name="done")
            if fd.size() == 3 and done[0]:
                return fd.size()
            state.commit()

    return train(ObjectState(fd.broadcast_object, fd.rank)) or 0


def test_elastic_job_goes_on_when_dialers_come_and_are_killed(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job(until_three, str(tmp_path), elastic=Elastic(1, 3, discovery=DIAL))
    first = one.dial("a")
    one.dial("b")
    # The first host may begin alone, if the other one is slow to dial.
    until(lambda: re.search(r"2 workers (begin|go on) as generation", one.printed.getvalue()) is not None)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: "1 worker goes on as generation" in one.printed.getvalue())
    one.dial("a.2", slots=2)
    until(lambda: "3 workers go on" in one.printed.getvalue())
    (tmp_path / "go").touch()
    assert one.results() == [3, 3, 3]


def name_of_worker(path: str) -> str:
    Path(path, f"{os.getpid()}").touch()
    return os.environ["FARANDOLE_WORKER"]


def test_elastic_job_whose_first_worker_has_ended_waits_for_host_that_is_slow_to_start(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    """Its functions call no init(), so they do not wait for each other."""
    one = job(name_of_worker, str(tmp_path), elastic=Elastic(2, 2, discovery=DIAL))
    one.dial("a")
    await_end_of(pids_in(tmp_path, 1))
    one.dial("b")
    assert one.results() == ["0", "1"]


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
