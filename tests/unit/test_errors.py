from __future__ import annotations

from farandole import errors
from farandole.errors import (
    FarandoleError,
    HorovodInternalError,
    InvalidRequestError,
    MismatchError,
    NotInitializedError,
    ShutDownError,
    WorkerLostError,
    lost_rank_behind,
)


def test_what_can_be_caught_as_what():
    for kind in (InvalidRequestError, errors.SettingError):
        assert issubclass(kind, ValueError) and not issubclass(kind, HorovodInternalError)
    assert issubclass(NotInitializedError, ValueError) and issubclass(NotInitializedError, HorovodInternalError)
    for kind in (MismatchError, WorkerLostError, ShutDownError):
        assert issubclass(kind, HorovodInternalError) and not issubclass(kind, ValueError)
    assert issubclass(FarandoleError, RuntimeError)
    # The name is Horovod's where it was imported under that name, perhaps by another test of this process.
    assert str(NotInitializedError()) == f"{NotInitializedError.product} has not been initialized; use hvd.init()."


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
    assert lost_rank_behind(ShutDownError("rank 1 has shut down", 1)) == 1
    assert lost_rank_behind(ValueError()) is None and lost_rank_behind(None) is None


def test_a_circle_of_causes_ends():
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert lost_rank_behind(first) is None
