"""What the benchmarks print: numbers, tables, regions of a document. And what they say they measure."""

from __future__ import annotations

import doctest
from math import prod
from pathlib import Path

import pytest
from benchmarks import gradients, report, topology
from benchmarks.cases import CASES
from benchmarks.cases.base import Case, Ratio
from benchmarks.conductor import Row
from benchmarks.peers.base import ROOT

CASE = Case("x", "a case", ("world", "bytes"), lambda conductor, scope: [], (Ratio("b / a", ("b", "c"), "a"),))
ROWS = [
    Row({"world": 2, "bytes": 1024}, {"a": [1e-6, 9e-6, 2e-6], "b": [4e-6], "c": [3e-6]}),
    Row({"world": 8, "bytes": 1 << 20}, {"a": [0.5]}, {"b": "has no such thing"}),
]


@pytest.mark.parametrize("module", [gradients, report, topology])
def test_examples_in_docstrings_hold(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried and not failed


def test_a_table_has_medians_and_the_ratio_to_the_fastest() -> None:
    assert report.table(CASE, ROWS) == (
        "| world | bytes |       a |       b |       c | b / a |\n"
        "| ----: | ----: | ------: | ------: | ------: | ----: |\n"
        "|     2 |  1 KB | 2.00 us | 4.00 us | 3.00 us |  1.50 |\n"
        "|     8 |  1 MB |  500 ms |       - |         |       |"
    )
    assert report.notes(ROWS) == ["b: has no such thing"]


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = report.Results({"cores": 2}, False, [report.CaseResult("x", ROWS, (0.5, 1.5), 3.0)], ["one failed"])
    results.write(tmp_path / "new" / "numbers.json")
    assert report.Results.read(tmp_path / "new" / "numbers.json") == results


def test_a_later_run_replaces_the_cases_it_has() -> None:
    def run(*letters: str, load: float) -> report.Results:
        return report.Results({}, False, [report.CaseResult(letter, [], (load, load), 0.0) for letter in letters], [])

    kept = run("a", "c", load=1.0)
    kept.join(run("b", "c", load=2.0))
    assert [(case.letter, case.load[0]) for case in kept.cases] == [("a", 1.0), ("b", 2.0), ("c", 2.0)]


def test_the_document_has_a_region_for_every_case() -> None:
    for page in {case.document for case in CASES}:
        text = (ROOT / "docs" / page).read_text()
        for name in ("machine", *(case.letter for case in CASES if case.document == page)):
            assert "\nfound here\n" in report.replace_region(text, name, "found here")
    with pytest.raises(ValueError, match="no region"):
        report.replace_region(text, "of nobody", "")


def test_buckets_hold_every_gradient_once() -> None:
    buckets = gradients.plan_buckets()
    assert sum(elements for elements, _ in buckets) == sum(map(prod, gradients.resnet50_shapes()))
    assert sum(members for _, members in buckets) == len(gradients.resnet50_shapes())
