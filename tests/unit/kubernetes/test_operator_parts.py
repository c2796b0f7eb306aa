"""Parts of the operator's process with tiny fake API servers that answer at inconvenient moments."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import pytest
from fake_api_server import FakeApiServer
from fake_operators import config, until

from farandole.control.kubernetes.api.client import Api
from farandole.control.kubernetes.api.errors import Conflict, Gone, NotFound, ObjectRefused, Unavailable
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Ref
from farandole.control.kubernetes.operator import backoff, election, watch
from farandole.control.kubernetes.operator.carry_out import Executor
from farandole.control.kubernetes.operator.election import Election
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.operator.watch import ChildWatch, JobWatch
from farandole.control.kubernetes.operator.work_queue import WorkQueue


def job(version: int, name: str = "pi") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}}


@pytest.mark.parametrize("rounds", range(4))
def test_worker_ends_although_work_arrives_with_cancellation(rounds: int) -> None:
    async def test() -> bool:
        queue = WorkQueue(lambda: 0.0)
        queue.add(JobKey("mpijobs", "default", "pi"), 9.0)
        worker = asyncio.create_task(queue.get())
        await asyncio.sleep(0.01)
        queue.add(JobKey("mpijobs", "default", "pi"), 8.0)
        for _ in range(rounds):
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.wait({worker}, timeout=10)
        done = worker.done()
        worker.cancel()
        return done

    assert asyncio.run(test())


async def turns(number: int) -> None:
    """Wait for turns of the event loop, in which others go on."""
    for _ in range(number):
        await asyncio.sleep(0)


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {}}

    async def get(self, _: object) -> dict[str, Any]:
        await turns(2)
        return copy.deepcopy(self.lease)

    async def replace(self, lease: dict[str, Any]) -> dict[str, Any]:
        await turns(2)
        if lease["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(409, "it has changed")
        version = str(int(lease["metadata"]["resourceVersion"]) + 1)
        self.lease = {**lease, "metadata": {"resourceVersion": version}}
        return copy.deepcopy(self.lease)


@pytest.mark.parametrize("phase", range(10))
def test_ending_operator_does_not_renew_released_lease(phase: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(election, "EVERY", 0.0)

    async def test() -> str:
        api = Leases()
        one = Election(api, "default", "me", lambda news: None)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        while not one.leading:
            await turns(1)
        await turns(phase)
        await one.release()
        await turns(50)
        running.cancel()
        return str(api.lease["spec"]["holderIdentity"])

    assert asyncio.run(test()) == ""


# --- an API server that is away, or talks nonsense ----------------------------------------------------------------


def test_backoff_survives_an_outage_of_days() -> None:
    key = JobKey("mpijobs", "default", "pi")
    queue = WorkQueue(lambda: 0.0)
    assert [queue.add_failed(key) for _ in range(2000)][-1] == 60.0

    one = ClusterStore(lambda _: None)
    one.put_job(key, job(1))
    executor = Executor(None, one, lambda: True, lambda: 0.0)  # type: ignore[arg-type]
    ref = Ref("v1", "Pod", "default", "pi-worker-0")
    for _ in range(2000):
        executor._refused(key, ref, ObjectRefused(403, "exceeded quota"))
    problem = one.problem(key, ref)
    assert problem is not None
    assert (problem.tries, problem.retry_at) == (2000, 300.0)


class Watches:
    """Lists some objects, and lets each watch tell some changes and end in some way; counts the lists and watches."""

    def __init__(self, *ends: Callable[[], object], items: Sequence[dict[str, Any]] = ()) -> None:
        self.items = list(items)
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self._ends = ends
        self.lists = self.watches = 0
        self.before_list: Callable[[], object] = lambda: None

    async def list(self, *_: object) -> tuple[list[dict[str, Any]], str]:
        self.lists += 1
        self.before_list()
        return self.items, "5"

    @contextlib.asynccontextmanager
    async def watch(self, *_: object) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        self.watches += 1
        yield self._tell()

    async def _tell(self) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        await asyncio.sleep(0.001)
        for change in self.changes:
            yield change
        if self.watches > len(self._ends):
            await asyncio.Event().wait()
        self._ends[self.watches - 1]()


def raises(error: Exception) -> Callable[[], object]:
    def end() -> None:
        raise error

    return end


@pytest.mark.parametrize("end", [lambda: None, raises(Gone(410, "too old"))], ids=["it ends at once", "it is too old"])
def test_watch_that_ends_early_is_restarted_with_backoff(
    end: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def test() -> None:
        api = Watches(*[end] * 100)
        waiting = asyncio.Event()

        def rest(*arguments: float) -> float:
            waits.append(backoff.rest(*arguments))
            waiting.set()
            return 1000.0

        monkeypatch.setattr(watch, "rest", rest)
        one = ChildWatch(api, ClusterStore(lambda _: None), "v1", "Pod", clock=lambda: 0.0)  # type: ignore[arg-type]
        running = asyncio.create_task(one.run())
        await asyncio.wait_for(waiting.wait(), 60)
        running.cancel()
        assert api.watches == 2, "the second one comes at once, as after a long outage; then it waits"

    asyncio.run(test())
    assert waits == [1.0]


ENDS = {
    "it ends": lambda: None,
    "410": raises(Gone(410, "too old resource version")),
    "404": raises(NotFound(404, "the server could not find the requested resource")),
    "403": raises(ObjectRefused(403, "pods is forbidden")),
    "the connection is reset": raises(Unavailable(0, "the connection broke: connection reset")),
    "an error of ours": raises(KeyError("metadata")),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_watch_restarts_after_any_end(end: Callable[[], object]) -> None:
    async def test() -> list[str]:
        api, one = Watches(end, end, items=[job(3)]), ClusterStore(lambda _: None)
        running = asyncio.create_task(JobWatch.of(api, one, MPI_JOB, "").run())  # type: ignore[arg-type]
        await until(lambda: api.watches == 3, "the third watch runs")
        running.cancel()
        return [key.name for key, _ in one.jobs()]

    assert asyncio.run(test()) == ["pi"]


def test_change_that_cannot_be_stored_is_logged_once_and_watch_continues(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        api = Watches(items=[job(3)])
        api.changes = [("MODIFIED", {"metadata": {"namespace": "default"}})]
        running = asyncio.create_task(JobWatch.of(api, ClusterStore(lambda _: None), MPI_JOB, "").run())  # type: ignore[arg-type]
        await until(lambda: api.watches == 2, "the second watch runs")
        running.cancel()

    asyncio.run(test())
    assert "the watch of mpijobs is down: 'name'" in caplog.text


def test_outage_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        broken = raises(Unavailable(0, "no answer"))
        api = Watches(items=[job(3)])
        failures = iter([broken] * 3)
        api.before_list = lambda: next(failures, lambda: None)()
        running = asyncio.create_task(JobWatch.of(api, ClusterStore(lambda _: None), MPI_JOB, "").run())  # type: ignore[arg-type]
        await until(lambda: api.watches == 1, "the watch runs")
        running.cancel()

    caplog.set_level("INFO", "farandole.operator")
    asyncio.run(test())
    assert caplog.messages == ["the watch of mpijobs is down: no answer", "the watch of mpijobs is up again"]


def test_job_created_during_listing_is_not_removed() -> None:
    async def test() -> list[str]:
        api, one = Watches(), ClusterStore(lambda _: None)
        one.put_job(JobKey("mpijobs", "default", "old"), job(3, "old"))
        # The list is of version 5.
        api.before_list = lambda: one.put_job(JobKey("mpijobs", "default", "new"), job(7, "new"))
        running = asyncio.create_task(JobWatch.of(api, one, MPI_JOB, "").run())  # type: ignore[arg-type]
        await until(lambda: api.watches == 1, "the watch runs")
        running.cancel()
        return [key.name for key, _ in one.jobs()]

    assert asyncio.run(test()) == ["new"]


# --- what the probes are told ----------------------------------------------------------------------------------------


def probed(may_lack: bool, *ends: Callable[[], object]) -> tuple[str, str, str, str]:
    """Return why an operator is not ready at once, after 14 s and after 16 s, and not alive after an hour."""

    async def test() -> tuple[str, str, str, str]:
        now = [0.0]
        api = Watches(*ends)
        one = ChildWatch(api, ClusterStore(lambda _: None), "v1", "Pod", may_lack=may_lack, clock=lambda: now[0])  # type: ignore[arg-type]
        api.before_list = ends[0] if ends else lambda: None
        running = asyncio.create_task(one.run())
        await until(lambda: api.watches or api.lists, "it has begun")
        await asyncio.sleep(0.01)
        found = [one.why_not_ready()]
        for now[0] in (14.0, 16.0):
            found.append(one.why_not_ready())
        now[0] = 3600.0
        running.cancel()
        return found[0], found[1], found[2], one.why_not_alive()

    return asyncio.run(test())


LACKS = raises(NotFound(404, "there is no such kind"))


def test_operator_is_ready_while_it_watches() -> None:
    assert probed(False) == ("", "", "", "the watch of pods has been stuck for 3600 s")


def test_operator_is_not_ready_before_everything_is_listed() -> None:
    why = "the watch of pods has not listed everything yet: there is no such kind"
    assert probed(False, LACKS)[:3] == (why, why, why)


def test_operator_is_not_ready_when_a_watch_is_down_for_15_s() -> None:
    why = "the watch of pods has been down for 16 s: there is no such kind"
    assert probed(True, LACKS)[:3] == ("", "", why)


def answers(content: bytes) -> Api:
    api = Api(config(FakeApiServer()))
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=content))
    api._client = httpx2.AsyncClient(transport=transport, base_url="http://fake")
    return api


@pytest.mark.parametrize("content", [b"<html>Sign in</html>", b"[]", b'{"type": "MODIFIED", "object"'])
def test_answer_that_is_not_an_object_is_an_outage(content: bytes) -> None:
    async def test() -> None:
        api = answers(content)
        with pytest.raises(Unavailable, match="not an answer of an API server"):
            await api.get(Ref("v1", "Pod", "default", "pi-worker-0"))
        with pytest.raises(Unavailable, match="not an answer of an API server"):
            async with api.watch("v1", "pods", "5") as changes:
                await changes.__anext__()
        await api.close()

    asyncio.run(test())
