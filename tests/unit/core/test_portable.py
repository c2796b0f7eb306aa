"""What comes to a worker or leaves it in a pickle is pickled as its front end has registered, wherever it goes."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.base import portable
from farandole.control.jobs import function
from farandole.control.launcher.function import pickle_call
from farandole.worker.core import value_reports


class OnDevice:
    """Like a tensor of a GPU: as it is, no other process can load it."""

    def __reduce__(self) -> Any:
        raise TypeError("this device is not there")


def reported(value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    sent: list[bytes] = []
    monkeypatch.setattr(value_reports._reporter, "send", sent.append)
    value_reports.report(value)
    return pickle.loads(sent[0])


def returned(value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return pickle.loads(portable.dump_result(value))[1]


def raised(value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return pickle.loads(portable.dump_exception(ValueError(value)))[1].args[0]


def argument(value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    _, pickled = pickle.loads(pickle_call(print, [value], {}))
    return pickle.loads(pickled)[1][0]


def argument_of_submitted(value: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    _, pickled = pickle.loads((function.write_call(print, [value], folder) / "call").read_bytes())
    return pickle.loads(pickled)[1][0]


@pytest.mark.parametrize("way", [argument, argument_of_submitted, reported, returned, raised])
def test_value_is_pickled_as_registered(
    way: Callable[[Any, Path, pytest.MonkeyPatch], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(portable._reducers, OnDevice, lambda value: (sys.intern, ("its content",)))
    assert way([OnDevice()], tmp_path, monkeypatch) == ["its content"]


def test_exception_that_cannot_be_pickled_has_a_substitute() -> None:
    error = ValueError(threading.Lock())
    assert pickle.loads(portable.dump_exception(error)) == (False, None)
    assert pickle.loads(portable.dump_exception(error, "instead")) == (False, "instead")
