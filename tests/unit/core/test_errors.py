from __future__ import annotations

import pytest

from farandole.core import errors
from farandole.core.errors import (
    FarandoleError,
    HorovodInternalError,
    InvalidRequestError,
    MismatchError,
    NotInitializedError,
    ShutDownError,
    StartError,
    Status,
    WorkerLostError,
    from_status,
    lost_rank_behind,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_ARGUMENT, InvalidRequestError),
        (Status.MISMATCH, MismatchError),
        (Status.WORKER_LOST, WorkerLostError),
        (Status.SHUT_DOWN, ShutDownError),
        (Status.TIMEOUT, StartError),
        (Status.UNAVAILABLE, StartError),
        (Status.INTERNAL, HorovodInternalError),
    ],
)
def test_statuses(status, kind):
    error = from_status(status, "what happened", 3)
    assert type(error) is kind and str(error) == "what happened"


def test_every_status_but_ok_is_mapped():
    for status in Status:
        if status != Status.OK:
            assert isinstance(from_status(status, "", -1), FarandoleError)


@pytest.mark.parametrize("status", [Status.WORKER_LOST, Status.TIMEOUT])
def test_the_lost_rank(status):
    assert from_status(status, "", 3).rank == 3
    assert from_status(status, "", -1).rank is None


def test_what_can_be_caught_as_what():
    for kind in (InvalidRequestError, errors.SettingError):
        assert issubclass(kind, ValueError) and not issubclass(kind, HorovodInternalError)
    assert issubclass(NotInitializedError, ValueError) and issubclass(NotInitializedError, HorovodInternalError)
    for kind in (MismatchError, WorkerLostError, ShutDownError):
        assert issubclass(kind, HorovodInternalError) and not issubclass(kind, ValueError)
    assert issubclass(FarandoleError, RuntimeError)
    assert str(NotInitializedError()) == "farandole has not been initialized; use hvd.init()."


def raised(make):
    try:
        make()
    except Exception as error:
        return error
    raise AssertionError


def test_lost_rank_behind_an_error():
    def directly():
        raise WorkerLostError("", 2)

    def from_it():
        try:
            directly()
        except WorkerLostError as error:
            raise ValueError from error

    def while_handling():
        try:
            from_it()
        except ValueError:
            raise KeyError  # noqa: B904  the context is what is tested

    def from_none():
        try:
            directly()
        except WorkerLostError:
            raise ValueError from None

    assert [lost_rank_behind(raised(make)) for make in (directly, from_it, while_handling)] == [2, 2, 2]
    assert lost_rank_behind(raised(from_none)) is None
    assert lost_rank_behind(ValueError()) is None and lost_rank_behind(None) is None


def test_a_circle_of_causes_ends():
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert lost_rank_behind(first) is None
