"""The results of a run, as data, as tables, and in the document."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.elastic.bench import Trial
from benchmarks.elastic.events.base import COUNT, SHARE, Event, Measure
from benchmarks.report import describe_machine, format_seconds, replace_region

OURS = "farandole"
_REGION = "elastic"


@dataclass
class EventResult:
    """The result of one event: its trials by library, and why a library has none."""

    name: str
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    """The seconds that the measurement took."""


@dataclass
class Results:
    """The result of one run, which is the content of the JSON file."""

    machine: dict[str, Any]
    quick: bool
    events: list[EventResult] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote."""
        data = json.loads(path.read_text())
        events = [
            EventResult(
                event["name"],
                {peer: [Trial(**trial) for trial in trials] for peer, trials in event["trials"].items()},
                event["missing"],
                event["seconds"],
            )
            for event in data["events"]
        ]
        return cls(data["machine"], data["quick"], events)


def begin_results(quick: bool) -> Results:
    """Return results without events yet, with this machine and the versions that matter."""
    machine = describe_machine()
    machine["versions"] = {name: _version(name) for name in ("farandole", "torch", "torchft")}
    return Results(machine, quick)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


# --- numbers for people ------------------------------------------------------------------------------------------


def format_value(value: float, unit: str) -> str:
    """Write a number of a trial.

    Example:
        >>> format_value(0.0123, "seconds"), format_value(3, "count"), format_value(0.0042, "share")
        ('12.3 ms', '3', '0.4%')
        >>> format_value(-0.002, "seconds")
        '-2.00 ms'
    """
    if unit == COUNT:
        return f"{value:.0f}"
    if unit == SHARE:
        return f"{value:.1%}"
    return f"-{format_seconds(-value)}" if value < 0 else format_seconds(value)


def median_and_worst(trials: Iterable[Trial], measure: Measure) -> str:
    """Return the median and the worst value of a measure, or a dash."""
    values = [trial.values[measure.name] for trial in trials if measure.name in trial.values]
    if not values:
        return "-"
    return " / ".join(format_value(value, measure.unit) for value in (statistics.median(values), max(values)))


def ratio(trials: Iterable[Trial], ours: Iterable[Trial], name: str) -> str:
    """Return the ratio of this median to ours, or an empty text if one of them is missing."""
    own, other = ([trial.values[name] for trial in some if name in trial.values] for some in (list(ours), list(trials)))
    if not own or not other or statistics.median(own) <= 0:
        return ""
    return f"{statistics.median(other) / statistics.median(own):.1f}"


def outcomes(trials: Sequence[Trial]) -> str:
    """Return how often each outcome happened, the most frequent first.

    Example:
        >>> outcomes([Trial("went on"), Trial("crashed"), Trial("went on")])
        '2 of 3: went on; 1 of 3: crashed'
        >>> outcomes([Trial("went on"), Trial("went on")])
        'all: went on'
    """
    counts = Counter(trial.outcome for trial in trials)
    if len(counts) == 1:
        return f"all: {trials[0].outcome}"
    return "; ".join(f"{count} of {len(trials)}: {outcome}" for outcome, count in counts.most_common())


# --- tables --------------------------------------------------------------------------------------------------------


def machine_line(results: Results) -> str:
    """Return what the numbers depend on, in one line."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, {machine['memory_mb'] // 1024} GB, "
        f"{machine['system']}, Python {machine['python']}; {versions}."
        + (" A quick run: too short to be believed." if results.quick else "")
    )


def table(event: Event, result: EventResult) -> str:
    """Write the numbers of an event, in Markdown: a line for each library."""
    compared = [measure for measure in event.measures if measure.compared]
    head = ["", "trials", *(measure.name for measure in event.measures), *(f"{each.name} / ours" for each in compared)]
    ours = result.trials.get(OURS, [])
    body = [
        [
            peer,
            str(len(trials)),
            *(median_and_worst(trials, measure) for measure in event.measures),
            *(ratio(trials, ours, measure.name) for measure in compared),
        ]
        for peer, trials in result.trials.items()
    ]
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    rule = ["-" * (width - 1) + ":" for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in [head, rule, *body]
    )


def section(event: Event, result: EventResult) -> str:
    """Write an event: its table, and below it what happened and what the libraries said."""
    lines = [
        f"**{event.name}: {event.title}** (median / worst; goal: {event.goal}; measured in {result.seconds:.0f} s)"
    ]
    lines += ["", table(event, result), ""]
    lines += [f"- {peer}: {outcomes(trials)}{_said(trials)}" for peer, trials in result.trials.items() if trials]
    lines += [f"- {peer}: not measured: {why}" for peer, why in result.missing.items()]
    return "\n".join(lines)


def _said(trials: Sequence[Trial]) -> str:
    """Return the message that a library printed most often when it failed."""
    details = Counter(trial.detail for trial in trials if trial.detail)
    return f" (it said{details.most_common(1)[0][0]})" if details else ""


def has_region(path: Path) -> bool:
    """Return whether a document has a region for the tables."""
    return path.exists() and f"<!-- bench:{_REGION} -->" in path.read_text()


def write_document(path: Path, events: Sequence[Event], results: Results) -> None:
    """Put the tables of a run into the region of a document; its other text stays."""
    by_name = {event.name: event for event in events}
    sections = [section(by_name[result.name], result) for result in results.events]
    path.write_text(replace_region(path.read_text(), _REGION, "\n\n".join([machine_line(results), *sections])))
