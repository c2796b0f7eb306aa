from __future__ import annotations

import pytest
from folder_times import folder_of, tabulate


@pytest.mark.parametrize(
    ("nodeid", "folder"),
    [
        ("tests/unit/launcher/daemon/test_daemon.py::test_a[x/y]", "unit/launcher"),
        ("tests/hosts/test_bed.py::test_a", "hosts"),
        ("tests/integration/test_wheel.py::test_a", "integration"),
    ],
)
def test_a_test_counts_for_its_folder(nodeid: str, folder: str) -> None:
    assert folder_of(nodeid) == folder


def test_the_longest_comes_first_and_a_test_counts_once() -> None:
    def report(nodeid: str, when: str, duration: float) -> pytest.TestReport:
        return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, when, duration=duration)

    reports = [
        report("tests/hosts/test_a.py::test_a", "setup", 1.0),
        report("tests/hosts/test_a.py::test_a", "call", 2.0),
        report("tests/unit/core/test_b.py::test_b", "call", 4.0),
    ]
    assert [row.split() for row in tabulate(reports)] == [
        ["4.0", "s", "1", "unit/core"],
        ["3.0", "s", "1", "hosts"],
        ["7.0", "s", "2", "in", "all"],
    ]
