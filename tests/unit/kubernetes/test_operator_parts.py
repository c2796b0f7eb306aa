"""Parts of the operator's process, against API servers that are a few lines: what they say at the wrong moment."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from fake_api_server import FakeApiServer
from fake_operators import config

from farandole.kubernetes.kinds import MPI_JOB
from farandole.kubernetes.model import Ref
from farandole.kubernetes.operator.api import Api
from farandole.kubernetes.operator.carry_out import Executor
from farandole.kubernetes.operator.election import Election
from farandole.kubernetes.operator.errors import Conflict, Gone, Refused, Unavailable
from farandole.kubernetes.operator.process import Operator, Settings
from farandole.kubernetes.operator.store import JobKey, Store
from farandole.kubernetes.operator.watch import ChildWatch
from farandole.kubernetes.operator.work_queue import WorkQueue


def operator() -> Operator:
    """Return an operator that is not started."""
    return Operator(Settings(kinds=(MPI_JOB,), port=None), config(FakeApiServer()))


def job(version: int, name: str = "pi") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}}


class Lists:
    """Answers a list after something else has happened."""

    def __init__(self, items: list[dict[str, Any]], version: str, meanwhile: Callable[[], object]) -> None:
        self._answer = items, version
        self._meanwhile = meanwhile

    async def list(self, *_: object) -> tuple[list[dict[str, Any]], str]:
        self._meanwhile()
        return self._answer


def test_a_job_that_is_created_while_jobs_are_listed_is_not_taken_for_one_that_is_gone() -> None:
    async def test() -> list[str]:
        one = operator()
        old, new = job(3, "old"), job(7, "new")
        one._take(MPI_JOB, "ADDED", old)
        one.api = Lists([], "5", lambda: one._take(MPI_JOB, "ADDED", new))  # type: ignore[assignment]
        await one._compare_all()
        one._take(MPI_JOB, "MODIFIED", job(8, "new"))
        return [key.name for key, _ in one.store.jobs()]

    assert asyncio.run(test()) == ["new"]


@pytest.mark.parametrize("rounds", range(4))
def test_work_that_comes_together_with_the_end_does_not_keep_a_worker(rounds: int) -> None:
    async def test() -> bool:
        queue = WorkQueue(lambda: 0.0)
        queue.add(JobKey("mpijobs", "default", "pi"), 9.0)
        worker = asyncio.create_task(queue.take())
        await asyncio.sleep(0.01)
        queue.add(JobKey("mpijobs", "default", "pi"), 8.0)
        for _ in range(rounds):
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.wait({worker}, timeout=0.1)
        done = worker.done()
        worker.cancel()
        return done

    assert asyncio.run(test())


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {}}

    async def get(self, _: object) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return copy.deepcopy(self.lease)

    async def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "it has changed")
        version = str(int(lease["metadata"]["resourceVersion"]) + 1)
        self.lease = {**lease, "metadata": {"resourceVersion": version}}
        return copy.deepcopy(self.lease)


@pytest.mark.parametrize("phase", [0.0, 0.005, 0.015, 0.025, 0.035, 0.045])
def test_an_operator_that_ends_does_not_take_the_lease_again(phase: float) -> None:
    async def test() -> str:
        api = Leases()
        one = Election(api, "default", "me", lambda news: None, duration=0.3)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        await asyncio.sleep(0.1 + phase)
        assert one.leading
        await one.release()
        await asyncio.sleep(0.1)
        running.cancel()
        return str(api.lease["spec"]["holderIdentity"])

    assert asyncio.run(test()) == ""


# --- an API server that is away, or talks nonsense ----------------------------------------------------------------


def test_an_outage_may_last_for_days() -> None:
    key = JobKey("mpijobs", "default", "pi")
    queue = WorkQueue(lambda: 0.0)
    assert [queue.add_failed(key) for _ in range(2000)][-1] == 60.0

    one = Store(lambda _: None)
    one.put_job(key, job(1))
    executor = Executor(None, one, lambda: True, lambda: 0.0)  # type: ignore[arg-type]
    ref = Ref("v1", "Pod", "default", "pi-worker-0")
    for _ in range(2000):
        executor._refused(key, ref, Refused(403, "exceeded quota"))
    problem = one.problem(key, ref)
    assert problem is not None
    assert (problem.tries, problem.retry_at) == (2000, 300.0)


class Watches:
    """Lists nothing, and ends each watch as it is told; counts the lists and watches."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.lists = self.watches = 0

    async def list(self, *_: object) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        return [], "5"

    async def watch(self, *_: object) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        self.watches += 1
        await asyncio.sleep(0.001)
        self._end()
        for nothing in ():
            yield nothing


def raises(error: Exception) -> Callable[[], object]:
    def end() -> None:
        raise error

    return end


@pytest.mark.parametrize("end", [lambda: None, raises(Gone(410, "too old"))], ids=["it ends at once", "it is too old"])
def test_a_watch_that_ends_at_once_again_and_again_is_begun_with_rests(end: Callable[[], object]) -> None:
    async def test() -> Watches:
        api = Watches(end)
        watch = ChildWatch(api, Store(lambda _: None), "v1", "Pod")  # type: ignore[arg-type]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(watch.run(), 0.3)
        return api

    api = asyncio.run(test())
    assert api.watches == 2, "the second one comes at once, as after a long outage; then it waits"


def answers(content: bytes) -> Api:
    api = Api(config(FakeApiServer()))
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=content))
    api._client = httpx2.AsyncClient(transport=transport, base_url="http://fake")
    return api


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b"[]", b'{"type": "MODIFIED", "object"'])
def test_an_answer_that_is_no_object_is_an_outage(content: bytes) -> None:
    async def test() -> None:
        api = answers(content)
        with pytest.raises(Unavailable, match="no answer of an API server"):
            await api.get(Ref("v1", "Pod", "default", "pi-worker-0"))
        with pytest.raises(Unavailable, match="no answer of an API server"):
            async for _ in api.watch("v1", "pods", "5"):
                pass
        await api.close()

    asyncio.run(test())
