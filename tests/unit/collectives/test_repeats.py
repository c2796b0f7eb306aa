from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.worker.collectives import repeats
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import Form
from farandole.worker.collectives.repeats import BlockingRepeat, Repeats
from farandole.worker.core.request import Names

IN_PLACE = Form(in_place=True)
WORLD = SimpleNamespace(process_set_id=0)
FRONT = SimpleNamespace(
    scope="",
    submits_in_order=True,
    no_compression=None,
    has_gradients=False,
    is_traced=None,
    address_if_like=lambda *_: 64,
    ready_dtype=lambda _: None,  # So no call is kept after it was made for the first time.
)


class Kept:
    """A call that was made before."""

    dtype, shape, misfits = "float32", (1,), 0

    def __init__(self, begins: bool = True) -> None:
        self._begins = begins

    def begun(self) -> bool:
        return self._begins


@pytest.fixture
def session(monkeypatch):
    session = SimpleNamespace(names=Names(), repeats={}, retry=None, notices=None, only_arrived=False, handles=None)
    monkeypatch.setattr(repeats, "current", lambda: session)
    return session


@pytest.fixture
def calls(session, monkeypatch):
    """The calls of `allreduce_`, which returns "new" when it is called for the first time."""
    monkeypatch.setattr(BlockingRepeat, "make", lambda *_: pytest.fail("no call was kept"))
    return Repeats(FRONT, ALLREDUCE, IN_PLACE, lambda *_: "new")


def settings(**given: Any) -> dict[str, Any]:
    """Return options as a rendered function passes them."""
    return {"average": None, "op": 1, "prescale": 1.0, "postscale": 1.0, **given}


def unnamed(calls: Repeats, **given: Any) -> Any:
    return calls.run("tensor", None, WORLD, settings(**given))


def keep(session, kept: Kept, name: str, is_unnamed: bool) -> None:
    key = ("allreduce_", name, is_unnamed, 0, *settings().values())
    session.repeats[key] = kept


@pytest.mark.parametrize(("begins", "next_number"), [(False, 0), (True, 1)])
def test_unnamed_call_that_fails_counts_only_if_the_engine_has_taken_it(session, monkeypatch, begins, next_number):
    def fail(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(BlockingRepeat, "make", fail)
    calls = Repeats(FRONT, ALLREDUCE, IN_PLACE, lambda *_: "new")
    keep(session, Kept(begins), session.names.name(0, True), is_unnamed=True)
    with pytest.raises(ValueError, match="no"):
        unnamed(calls)
    assert session.names.numbers("allreduce", 0).take() == next_number


def test_unnamed_call_that_is_not_kept_leaves_its_number_to_the_one_that_is_made_instead(session, calls):
    for _ in range(3):
        assert unnamed(calls) == "new"
    assert session.names.numbers("allreduce", 0).take() == 0


@pytest.mark.parametrize("given", [{"op": [1]}, {"average": [1], "op": None}])
@pytest.mark.filterwarnings("ignore:average is deprecated")
def test_call_with_an_option_without_a_hash_is_not_made_again(session, calls, given):
    assert unnamed(calls, **given) == "new"
    assert calls.run("tensor", "a", WORLD, settings(**given)) == "new"
    assert session.names.numbers("allreduce", 0).take() == 0


def test_call_with_the_same_arguments_is_made_again(session, monkeypatch):
    monkeypatch.setattr(BlockingRepeat, "make", lambda kept, *_: kept)
    calls = Repeats(FRONT, ALLREDUCE, IN_PLACE, lambda *_: "new")
    kept = Kept()
    keep(session, kept, "a", is_unnamed=False)
    assert calls.run("tensor", "b", WORLD, settings()) == "new"
    assert calls.run("tensor", "a", WORLD, settings(op=2)) == "new"
    assert calls.run("tensor", "a", WORLD, settings()) is kept


class Again:
    """A call that is kept, without an engine."""

    dtype, shape, misfits = "float32", (1,), 0

    def __init__(self, session, key, *_: object) -> None:
        self._session, self._key = session, key

    def put_back(self) -> None:
        self._session.repeats[self._key] = self

    def make(self, *_: object) -> str:
        self.put_back()
        return "again"


@pytest.fixture
def keeping_calls(session, monkeypatch):
    """The same calls as `calls`, which are kept."""
    monkeypatch.setattr(repeats, "BlockingRepeat", Again)
    monkeypatch.setattr(repeats, "Single", lambda *_: SimpleNamespace(fill=lambda *_: None, make_in_turn=lambda: None))
    session.pool = None
    front = SimpleNamespace(**{**vars(FRONT), "ready_dtype": lambda _: 1})
    return Repeats(front, ALLREDUCE, IN_PLACE, lambda *_: "new")


def test_call_is_kept_when_its_name_comes_for_the_second_time(keeping_calls):
    tensor = SimpleNamespace(dtype="float32", shape=(1,))
    outcomes = [keeping_calls.run(tensor, name, WORLD, settings()) for name in ("a", "b", "a", "a", "b", "b")]
    assert outcomes == ["new", "new", "new", "again", "new", "again"]


def test_unnamed_call_is_kept_at_once(session, keeping_calls):
    tensor = SimpleNamespace(dtype="float32", shape=(1,))
    assert keeping_calls.run(tensor, None, WORLD, settings()) == "new"
    assert [type(kept) for kept in session.repeats.values()] == [Again]


def test_deprecated_argument_warns_at_the_line_of_the_user(calls):
    def allreduce_() -> Any:  # In the place of the function that users call.
        return calls.run("tensor", "a", WORLD, settings(average=True, op=None))

    with pytest.warns(DeprecationWarning, match="average is deprecated") as warned:
        allreduce_()
    assert warned[0].filename == __file__
