"""Counts, sizes and errors in words."""

from __future__ import annotations

import pytest

from farandole.base.display.wording import bytes_text, count, error_lines


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (512 << 20, "512 MiB"), (3 << 30, "3 GiB"), (5 << 42, "20 TiB")],
)
def test_bytes_have_the_largest_unit_that_fits(number: int, text: str) -> None:
    assert bytes_text(number) == text


def test_only_one_thing_is_singular() -> None:
    assert [count(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]


def test_hint_is_on_a_line_of_its_own_and_may_be_missing() -> None:
    assert error_lines("no job is running", "start one") == "error: no job is running\nhint: start one"
    assert error_lines("no job is running") == "error: no job is running"
