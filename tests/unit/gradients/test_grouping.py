"""Which gradients are reduced together."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.worker.gradients.grouping import grouped


@pytest.mark.parametrize(
    ("count", "groups", "expected"),
    [
        (3, None, None),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (2, 5, [[0], [1]]),
        (3, [["c", "a"]], [[2, 0], [1]]),
        (2, [["x", "b"], ["y"]], [[1], [0]]),
    ],
)
def test_groups_are_numbers_of_neighbours_or_lists_of_variables(count: int, groups: Any, expected: Any) -> None:
    assert grouped("abcde"[:count], groups) == expected
