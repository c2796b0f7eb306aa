"""Functions for workers are checked before any worker is started."""

from __future__ import annotations

from typing import Any

import pytest

import farandole
import horovod
from farandole.errors import SpecError


@pytest.mark.parametrize("number", [0, -1, "2", 2.0])
def test_invalid_number_of_workers_is_refused(number: Any) -> None:
    with pytest.raises(
        SpecError, match=rf"^{number!r} workers cannot be started \(hint: use 1 or more for -np or num_p"
    ):
        farandole.run(print, num_proc=number)


@pytest.mark.parametrize("run", [farandole.run, horovod.run])
@pytest.mark.parametrize("given", [None, 0.25])
def test_result_in_place_of_a_function_is_refused(run: Any, given: object) -> None:
    with pytest.raises(SpecError, match=rf"^{given} is not a function \(hint: give the function without calling it"):
        run(given)
