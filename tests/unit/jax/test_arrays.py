"""Arrays of JAX as the engine sees them."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from farandole.errors import InvalidRequestError
from farandole.jax.arrays import Arrays


def test_numbers_of_rows_are_right_or_an_error() -> None:
    assert Arrays().whole_numbers([0, 2**31 - 1], None).tolist() == [0, 2**31 - 1]
    with pytest.raises(InvalidRequestError, match="jax_enable_x64"):
        Arrays().whole_numbers([2**31], None)
