"""Reads the fields of objects that users write, which may have any content. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from farandole.control.jobs.quantity import quantity
from farandole.control.kubernetes import names
from farandole.control.kubernetes.model import Object


class FieldReader:
    """Reads fields, and collects sentences about those that are not valid, which get their defaults.

    Attributes:
        faults: the sentences.
    """

    def __init__(self) -> None:
        """Create a reader without faults."""
        self.faults: list[str] = []

    def refuse(self, name: str, value: object, what: str) -> None:
        """Record that a field is not `what`, such as "text"."""
        self.faults.append(f"{name}: {shown(value)} is not {what}")

    def integer(
        self, source: Object, name: str, default: int | None, least: int = 0, most: int = 2**31 - 1
    ) -> int | None:
        """Return a whole number from `least` to `most`."""
        value = source.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.refuse(name, value, f"a whole number from {least} to {most}")
            return default
        return value

    def number(self, source: Object, name: str, default: float, *, zero: bool = False) -> float:
        """Return a number above 0; with `zero`, it may be 0."""
        value = source.get(name)
        if value is None:
            return default
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not usable or not (value > 0 or (zero and value == 0)):
            self.refuse(name, value, "a number of at least 0" if zero else "a number above 0")
            return default
        return float(value)

    def amount(self, source: Object, name: str) -> Decimal:
        """Return an amount of a resource above 0; 1 by default."""
        value = source.get(name)
        found = None if isinstance(value, bool) else quantity(str(value))
        if found is not None and found > 0:
            return found
        if value is not None:
            self.refuse(name, value, "an amount above 0")
        return Decimal(1)

    def text(self, source: Object, name: str, default: str = "") -> str:
        """Return a text that is not empty."""
        value = source.get(name)
        if value is None or value == "":
            return default
        if not isinstance(value, str):
            self.refuse(name, value, "text")
            return default
        return value

    def choice(self, source: Object, name: str, among: Sequence[str], default: str) -> str:
        """Return one of several texts."""
        value = source.get(name)
        if value is None or value == "":
            return default
        if value not in among:
            self.refuse(name, value, f"one of {', '.join(among)}")
            return default
        return str(value)

    def flag(self, source: Object, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = source.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, value, "true or false")
            return default
        return value

    def mapping(self, source: Object, name: str) -> Object:
        """Return a nested object; an empty one by default."""
        value = source.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, value, "an object with fields")
        return value if isinstance(value, Mapping) else {}

    def texts(self, source: Object, name: str, where: str = "") -> dict[str, str]:
        """Return a mapping of texts to texts. In sentences, `where` precedes its name."""
        found = self.mapping(source, name)
        if not all(isinstance(each, str) for pair in found.items() for each in pair):
            self.refuse(f"{where}{name}", found, "a mapping of texts to texts")
            return {}
        return {str(key): str(value) for key, value in found.items()}

    def check_lists(self, source: Object, names: Sequence[str], where: str) -> None:
        """Record which of some fields exist and are not lists. In sentences, `where` precedes their names."""
        for name in names:
            if source.get(name) is not None and not isinstance(source[name], list):
                self.refuse(f"{where}.{name}", source[name], "a list")


def other_manager(job: Object, *ours: str) -> str:
    """Return the controller that a job names, unless it is this operator; "" if it names none.

    Args:
        job: the job, whose spec may be anything.
        ours: other names by which jobs refer to this operator.
    """
    reader = FieldReader()
    spec = reader.mapping(job, "spec")
    named = reader.mapping(spec, "runPolicy").get("managedBy") or spec.get("managedBy")
    return named if isinstance(named, str) and named not in (f"{names.GROUP}/{names.OPERATOR}", *ours) else ""


def shown(value: Any) -> str:
    """Return a value as text for a sentence, of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
