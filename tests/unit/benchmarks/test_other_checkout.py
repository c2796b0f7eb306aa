"""Another checkout of farandole takes part where farandole does, and the table compares the two."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.cases.base import ARENA, COPY_BOUND, Case, copy_bound, everybody
from benchmarks.conductor import OTHER_CHECKOUT, Row, _with_other_checkout
from benchmarks.peers.base import Setup
from benchmarks.peers.other_checkout import check_checkout, launches
from benchmarks.report import table
from benchmarks.topology import Topology


def test_only_farandole_itself_has_a_second_contender():
    contenders = _with_other_checkout([*everybody("latency"), copy_bound(4)])
    doubled = [contender for contender in contenders if contender.label.endswith(OTHER_CHECKOUT)]
    assert [(other.label, other.peer, other.work) for other in doubled] == [
        (ARENA + OTHER_CHECKOUT, "other_checkout", "latency")
    ]
    assert COPY_BOUND in [contender.label for contender in contenders]


def test_the_table_says_how_many_times_as_long_the_other_one_took():
    case = Case("x", "title", ("world",), lambda conductor, scope: [])
    row = Row({"world": 2}, {ARENA: [1.0], ARENA + OTHER_CHECKOUT: [1.5]})
    lines = table(case, [row]).splitlines()
    assert lines[0].split("|")[-2].strip() == f"other / {ARENA}"
    assert lines[2].split("|")[-2].strip() == "1.50"


def test_its_workers_see_that_checkout_and_nothing_of_this_one(tmp_path):
    setup = Setup("other_checkout", Topology(1, 2), tmp_path, tmp_path / "s", None, tmp_path / "before")
    (launch,) = launches(setup)
    python = str(tmp_path / "before/.venv/bin/python")
    assert launch.command[0] == python and python in launch.command[1:]
    assert launch.environment["PYTHONPATH"] == f"{tmp_path}/before:{tmp_path}/before/src"
    assert launch.environment["BENCHMARK_PEER"] == "farandole"


@dataclass(frozen=True)
class Missing:
    part: str
    remedy: str


@pytest.mark.parametrize(
    "missing",
    [
        Missing("benchmarks/worker.py", "name the top folder"),
        Missing(".venv/bin/python", "make setup"),
        Missing("src/farandole/worker/core/lib/libfarandole.so", "make setup"),
    ],
    ids=lambda missing: missing.part,
)
def test_what_is_no_built_checkout_is_refused_with_what_to_do(tmp_path: Path, missing):
    for part in ("benchmarks/worker.py", ".venv/bin/python", "src/farandole/worker/core/lib/libfarandole.so"):
        if part != missing.part:
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).touch()
    with pytest.raises(ValueError, match=missing.remedy):
        check_checkout(tmp_path)
