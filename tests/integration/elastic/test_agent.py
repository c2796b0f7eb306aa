"""An agent with elastic workers: one is ended with its processes, one is stopped, and the others keep running."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from agent_workers import FAMILY, Workers, all_have_ended, lives, with_agent

from farandole.control.agent.protocol import (
    Closed,
    Exited,
    Leaving,
    Stalled,
    Start,
    Started,
    Stop,
)
from farandole.control.agent.worker_cleanup import WORKER_VARIABLE
from farandole.control.launcher.host_setup import preemption
from farandole.control.launcher.host_setup.preemption import PreemptionWatch
from farandole.control.launcher.job.elastic import Elastic


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("grace", [0.0, 20.0])  # Nobody waits for that: they die of SIGTERM.
def test_single_worker_is_ended_with_its_processes(grace: float, stopped: bool) -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, FAMILY + "time.sleep(1000)")
        workers.start(1, FAMILY + "time.sleep(1000)")
        ended, stays = [[int(pid) for pid in (await workers.output(worker)).split()] for worker in (0, 1)]
        assert all(map(lives, ended + stays))
        if stopped:
            os.kill(ended[0], signal.SIGSTOP)
        workers.agent.send(Stop(0, grace))
        exited = await workers.hears(Exited)
        assert (exited.rank, exited.code) == (0, -signal.SIGTERM if grace else -signal.SIGKILL)
        await workers.closed(0)
        await all_have_ended(ended)
        assert all(map(lives, stays))

    with_agent(work)


def test_leftovers_of_worker_are_ended_with_it() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, FAMILY)
        pids = [int(pid) for pid in (await workers.output(0)).split()]
        exited = await workers.hears(Exited)
        assert exited.code == 0
        await workers.hears(Closed)
        await all_have_ended(pids)

    with_agent(work)


def test_worker_that_ignores_sigterm_is_killed_after_grace_period() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)")
        await workers.output(0)
        workers.agent.send(Stop(0, 0.2))
        assert (await workers.hears(Exited)).code == -signal.SIGKILL

    with_agent(work)


def test_stopped_and_continued_worker_is_reported() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import time; time.sleep(1000)")
        pid = (await workers.hears(Started)).pid
        os.kill(pid, signal.SIGSTOP)
        assert await workers.hears(Stalled) == Stalled(0, True)
        os.kill(pid, signal.SIGCONT)
        assert await workers.hears(Stalled, lambda message: not message.stopped) == Stalled(0, False)

    with_agent(work)


def test_terminated_agent_reports_it_and_stays() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import time; time.sleep(1000)")
        pid = (await workers.hears(Started)).pid
        workers.agent._process.process.terminate()
        await workers.hears(Leaving)
        assert lives(pid)

    with_agent(work)


def test_memory_of_agent_does_not_grow_with_ended_workers() -> None:
    async def work(workers: Workers) -> None:
        sizes = []
        for worker in range(150):
            workers.agent.send(Start(worker, ("/bin/echo", "hello"), {WORKER_VARIABLE: str(worker)}, "/", elastic=True))
            await workers.closed(worker)
            await workers.hears(Exited)
            workers.heard.clear()
            pid = workers.agent._process.process.pid
            sizes.append((_resident(pid), len(os.listdir(f"/proc/{pid}/fd"))))
        assert sizes[-1][0] - sizes[30][0] < 512 * 1024
        assert sizes[-1][1] < sizes[30][1] + 5  # It may just be reading in /proc.

    with_agent(work)


def test_preemption_notice_of_host_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = tmp_path / "notice"
    warned: list[str] = []

    async def work(workers: Workers) -> None:
        async def look(elastic: Elastic) -> str | None:
            return await PreemptionWatch(elastic, os.environ, warned.append).look(workers.agent, str(tmp_path))

        by_file = Elastic(1, None, preemption_file="notice")
        by_command = Elastic(1, None, preemption_command="test -e notice && cat notice")
        assert [await look(by_file), await look(by_command), await look(Elastic(1, None))] == ["", "", ""]
        notice.write_text("soon\n")
        assert [await look(by_file), await look(by_command)] == ["the file notice exists", "soon"]
        assert not warned
        assert await look(Elastic(1, None, preemption_command="no_such_program")) is None
        # Not before: those that end by themselves may take their time on a busy machine.
        monkeypatch.setattr(preemption, "COMMAND_SECONDS", 0.5)
        assert await look(Elastic(1, None, preemption_command="sleep 1000")) is None

    with_agent(work)
    first, second = warned
    assert first.startswith("warning: on host here, --preemption-command ended with code 127 (")
    assert "--preemption-command was killed by SIGKILL" in second


def test_unanswered_preemption_poll_is_reported_once_and_repeated(tmp_path: Path) -> None:
    """The command fails, then says that there is a notice, twice, then that there is none."""
    script = "echo >> asked; case $(wc -l < asked) in 1|2) exit 7;; 3|4) echo soon;; *) exit 1;; esac"
    warned: list[str] = []
    told: list[str] = []

    async def work(workers: Workers) -> None:
        elastic = Elastic(1, None, preemption_command=script, preemption_interval=0.01)
        done = asyncio.Event()

        def tell(notice: str) -> None:
            told.append(notice)
            if len(told) == 2:
                done.set()

        lookout = PreemptionWatch(elastic, os.environ, warned.append)
        watching = asyncio.create_task(lookout.watch(workers.agent, str(tmp_path), tell))
        await asyncio.wait_for(done.wait(), 20)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with_agent(work)
    assert told == ["soon", ""]
    assert len(warned) == 1


def _resident(pid: int) -> int:
    """Return the bytes of its own that are in memory; pages of files come and go with what else the machine does."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
