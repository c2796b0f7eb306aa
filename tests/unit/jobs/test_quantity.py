"""Amounts of resources."""

from __future__ import annotations

from decimal import Decimal

import pytest

from farandole.control.jobs.quantity import quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4", "4"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("2.", "2"),
        ("-1", "-1"),
        ("500m", "0.5"),
        ("1u", "0.001"),
        ("1n", "0.001"),
        ("3k", "3000"),
        ("1.5M", "1500000"),
        ("8Gi", "8589934592"),
        ("1Ti", "1099511627776"),
        ("2E", "2e18"),
        ("1e3", "1000"),
        ("1E-2", "0.01"),
        ("9223372036854775807", "9223372036854775807"),
    ],
)
def test_amounts_with_their_units(text: str, amount: str) -> None:
    assert quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text",
    ["", "much", "nan", "inf", "1 Gi", "8gi", "8K", "8Zi", "1e3Ki", "1_000", "٤", "9223372036854775808", "1e999"],
)
def test_what_is_not_an_amount(text: str) -> None:
    assert quantity(text) is None
