"""Amounts of resources, as Kubernetes and jobs write them: `2`, `500m` (thousandths), `8Gi`, `1e3`."""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

_FORM = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_UNITS = {unit: Decimal(1000) ** power for power, unit in enumerate("num kMGTPE", -3)} | {
    f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)
}
_LARGEST = 2**63 - 1
_SMALLEST = Decimal("0.001")


def quantity(text: str) -> Decimal | None:
    """Return an amount in whole units (cores, bytes, devices), rounded away from zero to thousandths.

    Returns:
        None if the text is not a valid amount; Kubernetes takes none above 2^63 - 1.

    Example:
        >>> quantity("1500m"), quantity("2Ki"), quantity("much")
        (Decimal('1.500'), Decimal('2048.000'), None)
    """
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    amount = Decimal(digits) * (Decimal(10) ** int(exponent) if exponent else _UNITS[unit or " "])
    return amount.quantize(_SMALLEST, ROUND_UP) if abs(amount) <= _LARGEST else None
