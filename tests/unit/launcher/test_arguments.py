"""Wrong kinds of arguments of functions that start jobs are refused before any worker is started."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

import farandole
from farandole.base.portable import dump_result
from farandole.control.launcher import arguments
from farandole.control.launcher.function import pickle_call, results_of
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.errors import JobFailed, SpecError


@pytest.mark.parametrize("given", [5, None, "path", b"path", {"path": 1}])
def test_arguments_that_are_not_a_sequence_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^args=.* is not a sequence of arguments \(hint: .*args=\(value,\)"):
        pickle_call(print, given, {})


def test_argument_that_cannot_be_pickled_is_refused() -> None:
    said = (
        r"^the function or an argument cannot be sent to workers: cannot pickle '_thread.lock' object \(hint: create "
    )
    with pytest.raises(SpecError, match=said) as caught:
        pickle_call(print, [threading.Lock()], {})
    assert isinstance(caught.value.__cause__, TypeError)


def test_result_that_cannot_be_pickled_is_an_error() -> None:
    said = r"^the result of the function, a lock, cannot be sent .*: cannot pickle '_thread.lock' object\. Return what "
    with pytest.raises(TypeError, match=said):
        dump_result(threading.Lock())


class OwnError(Exception):
    """Can be pickled, but not unpickled, as many exceptions with a constructor of their own."""

    def __init__(self, what: str, rank: int) -> None:
        super().__init__(f"{what} on rank {rank}")


def test_result_that_cannot_be_unpickled_is_an_error() -> None:
    outcome = JobOutcome(0, results=(dump_result(1), dump_result(OwnError("a", 1))))
    with pytest.raises(JobFailed, match=r"^the function has returned on rank 1, but .*missing 1 required.*Return what"):
        results_of(outcome)


@pytest.mark.parametrize("given", [5, [("end", "")], {1: 2}])
def test_keyword_arguments_that_are_not_named_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^kwargs=.* is not a dict of keyword arguments \(hint: "):
        farandole.run(print, kwargs=given)


@pytest.mark.parametrize("given", [5, ["A=1"], {1: "a"}, {"": "a"}, {"A=B": "a"}, {"A": None}, {"A": [1]}, {"A": "\0"}])
def test_variables_that_no_process_can_have_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"env.* \(hint: give "):
        farandole.run(print, env=given)


def test_value_of_a_refused_variable_is_not_shown() -> None:
    with pytest.raises(SpecError, match=r"env\['KEY'\] is a bytes") as caught:
        arguments.read_variables("env", {"KEY": b"secret"})
    assert "secret" not in str(caught.value)


def test_values_of_variables_are_converted_to_text() -> None:
    given = {"N": 1, "RATE": 0.5, "DIR": Path("/data"), "WORD": "a"}
    assert arguments.read_variables("env", given) == {"N": "1", "RATE": "0.5", "DIR": "/data", "WORD": "a"}
    assert arguments.read_variables("env", None) == {}


@pytest.mark.parametrize("given", ["5", [5], math.nan, None])
def test_what_is_not_a_number_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^start_timeout=.* is not a number of seconds \(hint: "):
        arguments.read_number("start_timeout", given, "seconds")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"start_timeout": "5"}, "start_timeout='5' is not a number of seconds"),
        ({"fusion_threshold_mb": "64"}, "fusion_threshold_mb='64' is not a number of MiB"),
        ({"hosts": ["h1:4", "h2:4"]}, r"hosts=\['h1:4', 'h2:4'\] is not text"),
        ({"network": ["eth0"]}, r"network=\['eth0'\] is not text"),
        ({"executable": 3}, "executable=3 is not text"),
        ({"output_dir": 3}, "output_dir=3 is not a path"),
    ],
)
def test_wrong_kinds_of_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=rf"^{said} \(hint: "):
        farandole.run(print, **wrong)


@pytest.mark.parametrize("given", [print, 5, [5], "print"])
def test_callbacks_that_cannot_be_called_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"^callbacks=.* is not a sequence of functions \(hint: .*callbacks=\[print\]"):
        arguments.check_callbacks(given)
