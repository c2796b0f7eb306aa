"""Findings of the doctor. A *problem* stops jobs from running, or makes them fail; a *note* is worth knowing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One finding of the doctor."""

    level: Level
    subject: str
    text: str
    todo: str = ""
    """The next step for the user; "": none is needed."""


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in order of severity, problems first."""
    return sorted(findings, key=lambda finding: ("problem", "note", "ok").index(finding.level))
