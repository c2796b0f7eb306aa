from __future__ import annotations

from types import SimpleNamespace

import pytest

from farandole.worker.collectives import repeats
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import Form
from farandole.worker.collectives.repeats import NEW, Repeats
from farandole.worker.core.request import Names

WORLD = SimpleNamespace(process_set_id=0)
FRONT = SimpleNamespace(scope="", submits_in_order=True, address_if_like=lambda *_: 64)


class Kept:
    """A call that was made before."""

    dtype, shape, misfits = "float32", (1,), 0

    def __init__(self, begins: bool) -> None:
        self._begins = begins

    def take(self, *_: object) -> None:
        """Take a tensor."""

    def begun(self) -> bool:
        return self._begins


@pytest.fixture
def session(monkeypatch):
    session = SimpleNamespace(names=Names(), repeats={}, retry=None, notices=None, handles=None)
    monkeypatch.setattr(repeats, "current", lambda: session)
    return session


def fail(*_: object) -> None:
    raise ValueError("no")


@pytest.mark.parametrize(("begins", "next_number"), [(False, 0), (True, 1)])
def test_unnamed_call_that_fails_counts_only_if_the_engine_has_taken_it(session, begins, next_number):
    calls = Repeats(FRONT, ALLREDUCE, Form(in_place=True), fail)
    _, key = calls.make("tensor", None, WORLD, {"op": 1})
    session.repeats[key] = Kept(begins)
    with pytest.raises(ValueError, match="no"):
        calls.make("tensor", None, WORLD, {"op": 1})
    assert session.names.numbers("allreduce", 0).take() == next_number


def test_unnamed_call_that_is_not_kept_leaves_its_number_to_the_one_that_is_made_instead(session):
    calls = Repeats(FRONT, ALLREDUCE, Form(in_place=True), fail)
    for _ in range(3):
        assert calls.make("tensor", None, WORLD, {"op": 1})[0] is NEW
    assert session.names.numbers("allreduce", 0).take() == 0


def test_unnamed_call_with_an_option_without_a_hash_is_not_made_again(session):
    calls = Repeats(FRONT, ALLREDUCE, Form(in_place=True), fail)
    assert calls.make("tensor", None, WORLD, {"op": [1]})[0] is NEW
    assert session.names.numbers("allreduce", 0).take() == 0
