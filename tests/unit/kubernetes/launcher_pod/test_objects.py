"""The launcher pod's two objects, with content that the API server or others may have written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping

import httpx2
import pytest

from farandole.control.kubernetes.api.blocking import BlockingApi
from farandole.control.kubernetes.launcher_pod.__main__ import is_done
from farandole.control.kubernetes.launcher_pod.state_objects import REUSED_SECONDS, SECONDS, NotWritten, StateObjects


class Told:
    """The state as it was written."""

    def __init__(self, outcome: str) -> None:
        self._outcome = outcome

    def read_state(self) -> Mapping[str, str]:
        return {"outcome": self._outcome}


@pytest.mark.parametrize("outcome", ["", "no JSON", "[]", "null", '"3"', '{"attempt": "0"}'])
def test_malformed_outcome_does_not_end_launcher(outcome: str) -> None:
    assert not is_done(Told(outcome), 0)  # type: ignore[arg-type]


def test_outcome_of_this_attempt_is_recognized() -> None:
    told = Told(json.dumps({"attempt": 3, "exitCode": 0}))
    assert is_done(told, 3)  # type: ignore[arg-type]
    assert not is_done(told, 4)  # type: ignore[arg-type]


def objects(status: int, text: bytes) -> StateObjects:
    """Return objects of a server that always says the same."""
    answer = httpx2.MockTransport(lambda request: httpx2.Response(status, content=text))
    one = StateObjects("team", "state", "failover")
    one._connect = lambda: BlockingApi(httpx2.Client(transport=answer, base_url="http://server"))  # type: ignore[method-assign]
    return one


@pytest.mark.parametrize(("status", "text"), [(409, b"{}"), (200, b"<html>"), (200, b"\xff"), (503, b"busy")])
def test_failed_reports_are_repeated(status: int, text: bytes) -> None:
    with pytest.raises(NotWritten):
        objects(status, text).write_state(status="{}")


def test_dead_connection_is_replaced() -> None:
    asked: list[tuple[int, float]] = []

    def connection(number: int) -> BlockingApi:
        def answer(request: httpx2.Request) -> httpx2.Response:
            asked.append((number, request.extensions["timeout"]["read"]))
            if number == 1 and len(asked) > 1:
                raise httpx2.ReadTimeout("nothing")
            return httpx2.Response(200, json={"data": {"a": "b"}})

        return BlockingApi(httpx2.Client(transport=httpx2.MockTransport(answer), base_url="http://server"))

    one, numbers = StateObjects("team", "state", "failover"), itertools.count(1)
    one._connect = lambda: connection(next(numbers))  # type: ignore[method-assign]
    assert one.read_state() == one.read_state() == {"a": "b"}
    assert asked == [(1, SECONDS), (1, REUSED_SECONDS), (2, SECONDS)]
