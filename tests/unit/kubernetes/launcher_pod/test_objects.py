"""The launcher pod's two objects: what the API server, or somebody else, may have put there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from farandole.control.kubernetes.launcher_pod.__main__ import is_done
from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten, StateObjects


class Told:
    """The state, as somebody has written it."""

    def __init__(self, outcome: str) -> None:
        self._outcome = outcome

    def read_state(self) -> Mapping[str, str]:
        return {"outcome": self._outcome}


@pytest.mark.parametrize("outcome", ["", "no JSON", "[]", "null", '"3"', '{"attempt": "0"}'])
def test_an_outcome_that_is_none_does_not_end_a_launcher(outcome: str) -> None:
    assert not is_done(Told(outcome), 0)  # type: ignore[arg-type]


def test_an_outcome_of_this_attempt_is_one() -> None:
    told = Told(json.dumps({"attempt": 3, "exitCode": 0}))
    assert is_done(told, 3)  # type: ignore[arg-type]
    assert not is_done(told, 4)  # type: ignore[arg-type]


class Answers:
    """A connection whose server always says the same, and closes it."""

    sock = None

    def __init__(self, status: int, text: bytes) -> None:
        self.status, self._text = status, text

    def request(self, *_: object) -> None:
        """Do nothing."""

    def getresponse(self) -> Answers:
        return self

    def read(self) -> bytes:
        return self._text


def objects(status: int, text: bytes, folder: Any) -> StateObjects:
    (folder / "token").write_text("t")
    one = object.__new__(StateObjects)
    one._folder, one._state, one._failover = folder, "/state", "/failover"
    one._connection = Answers(status, text)  # type: ignore[assignment]
    one._connect = lambda: Answers(status, text)  # type: ignore[method-assign, assignment, return-value]
    return one


@pytest.mark.parametrize(("status", "text"), [(409, b"{}"), (200, b"<html>"), (200, b"\xff"), (503, b"busy")])
def test_whatever_keeps_something_from_being_told_is_tried_again(status: int, text: bytes, tmp_path: Any) -> None:
    with pytest.raises(NotWritten):
        objects(status, text, tmp_path).tell(status="{}")
