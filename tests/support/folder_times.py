"""Prints, at the end of a session, the number of tests and the seconds for each folder of tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

LEAST_TESTS = 100
"""Minimum number of tests in a session for which the table is printed."""


def folder_of(nodeid: str) -> str:
    """Return the folder to which a test is counted: two levels, as in `unit/core`, or one, as for `hosts`."""
    return "/".join(nodeid.partition("::")[0].split("/")[1:-1][:2])


def tabulate(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the table's rows, the longest first, and the sum."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        seconds[folder_of(report.nodeid)] += report.duration
        tests[folder_of(report.nodeid)].add(report.nodeid)
    rows = [
        f"{seconds[name]:8.1f} s {len(tests[name]):6d}  {name}" for name in sorted(seconds, key=seconds.__getitem__)
    ]
    count = sum(map(len, tests.values()))
    return [*reversed(rows), f"{sum(seconds.values()):8.1f} s {count:6d}  in all"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    of_tests = (report for several in terminalreporter.stats.values() for report in several)
    reports = [report for report in of_tests if isinstance(report, pytest.TestReport)]
    if len({report.nodeid for report in reports}) >= LEAST_TESTS:
        terminalreporter.section("where the time went")
        for row in tabulate(reports):
            terminalreporter.line(row)
