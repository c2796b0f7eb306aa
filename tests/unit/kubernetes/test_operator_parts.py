"""Parts of the operator's process, against API servers that are a few lines: what they say at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fake_api_server import FakeApiServer
from fake_operators import config

from farandole.kubernetes.kinds import MPI_JOB
from farandole.kubernetes.operator.process import Operator, Settings


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
