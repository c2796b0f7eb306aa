"""Functions for workers are checked before any worker is started."""

from __future__ import annotations

from typing import Any

import pytest

import farandole
import horovod
from farandole.errors import SpecError


@pytest.mark.parametrize("run", [farandole.run, horovod.run])
@pytest.mark.parametrize("given", [None, 0.25])
def test_result_in_place_of_a_function_is_refused(run: Any, given: object) -> None:
    with pytest.raises(SpecError, match=rf"^{given} is not a function \(hint: give the function without calling it"):
        run(given)
