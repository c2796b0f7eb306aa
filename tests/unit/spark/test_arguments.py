"""Arguments of the wrong type are errors before anything starts."""

from __future__ import annotations

import io
from typing import Any

import pytest

from farandole.control.launcher.arguments import read_count
from farandole.errors import SpecError
from farandole.spark.backend import SparkBackend
from farandole.spark.driver import Options


def _read(ports: Any) -> Options:
    return Options.read(1.0, None, None, None, 0, False, None, ports)


@pytest.mark.parametrize("ports", [5000, "5000", ["5000"], [2.5], [-1], [65536], [], None])
def test_invalid_ports_are_an_error(ports: Any) -> None:
    with pytest.raises(SpecError, match="ports="):
        _read(ports)


def test_valid_ports_are_accepted() -> None:
    assert _read(range(5000, 5002)).ports == (5000, 5001)
    assert _read((0,)).ports == (0,)


@pytest.mark.parametrize("stream", [5, "out.txt", io.BytesIO()])
def test_streams_that_take_no_text_are_an_error(stream: Any) -> None:
    for given in ((stream, None), (None, stream)):
        with pytest.raises(SpecError, match="is not a stream of text"):
            Options.read(1.0, None, *given, 0, False, None, [0])
    assert Options.read(1.0, None, io.StringIO(), None, 0, False, None, [0])


@pytest.mark.parametrize("count", ["2", 2.0, 0, -1, [2]])
def test_invalid_number_of_workers_is_an_error(count: Any) -> None:
    with pytest.raises(SpecError, match="num_proc="):
        read_count("num_proc", count)
    with pytest.raises(SpecError, match="num_proc="):
        SparkBackend(count)


def test_valid_number_of_workers_is_accepted() -> None:
    assert read_count("num_proc", 2) == 2
