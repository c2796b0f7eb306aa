"""Tests that are flaky, tests that are broken, and what is never run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import retry_alone
from retry_alone import Failure, find_broken, objection, report

FLAKY = """
from pathlib import Path

def test_{name}(pytestconfig):
    times = pytestconfig.rootpath / "{name}.times"
    times.write_text(times.read_text() + "x" if times.exists() else "x")
    assert len(times.read_text()) not in {fails}, "first of all"
"""
CONFTEST = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if "exact" in item.name:
            item.add_marker(pytest.mark.exact)
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    monkeypatch.setenv("PYTHONPATH", str(Path(retry_alone.__file__).parent))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p retry_alone")
    pytester.makeini(
        "[pytest]\nmarkers = exact\nfilterwarnings = error\naddopts = --strict-markers\nexact_failures = wrongs\\(\n"
    )
    pytester.makeconftest(CONFTEST)

    def run(*arguments: str, **sources: str) -> pytest.RunResult:
        pytester.makepyfile(**{f"test_{name}": source for name, source in sources.items()})
        return pytester.runpytest_subprocess("--retry-alone", *arguments)

    return run


def flaky(name: str, *fails: int) -> str:
    return FLAKY.format(name=name, fails=fails)


Run = Callable[..., pytest.RunResult]
PASSES = "def test_passes(): pass"


def test_a_flaky_test_is_green_and_listed_with_its_first_failure(run: Run, pytester: pytest.Pytester) -> None:
    result = run(a=flaky("a", 1), b=PASSES)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*1 failed, 1 passed*",
            "--- flaky: test_a.py::test_a",
            "*first of all*",
            "flaky: test_a.py::test_a",
            "1 flaky*",
        ]
    )
    listed = (pytester.path / "build" / "flaky.txt").read_text()
    assert "flaky: test_a.py::test_a" in listed
    assert "AssertionError: first of all" in listed
    assert len((pytester.path / "a.times").read_text()) == 1 + retry_alone.TIMES


@pytest.mark.parametrize("fails", [(1, 2), (1, 3), (1, 2, 3)])
def test_a_test_that_fails_once_more_is_red(run: Run, pytester: pytest.Pytester, fails: tuple[int, ...]) -> None:
    result = run(a=flaky("a", *fails))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red: failed alone, too: test_a.py::test_a"])
    assert not (pytester.path / "build" / "flaky.txt").exists()


def test_a_test_that_fails_where_it_is_torn_down_is_run_again_alone(run: Run) -> None:
    source = flaky("a").replace("def test_a(", "def test_a(spoiled, ")
    spoiled = "import pytest\n@pytest.fixture\ndef spoiled():\n    yield\n    raise SystemError('torn')\n" + source
    assert run(a=spoiled).ret == 1


def test_other_tests_leave_no_trace_in_one_that_runs_alone(run: Run) -> None:
    result = run(
        a="import sys\ndef test_spoils(): sys.spoiled = 1\ndef test_is_spoiled(): assert not hasattr(sys, 'spoiled')"
    )
    assert result.ret == 0
    result.stdout.fnmatch_lines(["flaky: test_a.py::test_is_spoiled"])


def test_one_that_is_exact_is_never_run_again(run: Run, pytester: pytest.Pytester) -> None:
    result = run(a=flaky("exact", 1))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red, and not run again: test_a.py::test_exact: exact"])
    assert (pytester.path / "exact.times").read_text() == "x"


def test_a_failure_in_a_line_that_is_exact_is_never_run_again(run: Run) -> None:
    source = "def wrongs(): return [1]\ndef test_a(): assert wrongs() == []\ndef test_b(): assert not wrongs\n"
    result = run(a=source)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red, and not run again: test_a.py::test_a: exact"])


def test_more_than_three_are_red(run: Run, pytester: pytest.Pytester) -> None:
    result = run(**{name: flaky(name, 1) for name in "abcd"})
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red, and not run again: 4 tests failed*"])
    assert (pytester.path / "a.times").read_text() == "x"


def test_three_are_green(run: Run) -> None:
    result = run(**{name: flaky(name, 1) for name in "abc"})
    assert result.ret == 0
    result.stdout.fnmatch_lines(["3 flaky (at most 3)*"])


def test_a_warning_is_a_failure_when_run_again_too(run: Run) -> None:
    result = run(a="import warnings\ndef test_warns(): warnings.warn('beware')")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["red: failed alone, too: test_a.py::test_warns"])


def test_a_test_that_is_skipped_when_run_again_has_not_passed(run: Run) -> None:
    source = "import pytest\ndef test_a(pytestconfig):\n    seen = pytestconfig.rootpath / 'seen'\n"
    source += "    if seen.exists(): pytest.skip('no')\n    seen.touch()\n    assert False"
    assert run(a=source).ret == 1


@pytest.mark.parametrize(
    ("arguments", "sources", "code"),
    [
        ([], {"a": PASSES}, 0),
        ([], {"a": flaky("a", 1), "b": "import nothing_of_this_name"}, 2),
        (["--continue-on-collection-errors"], {"a": flaky("a", 1), "b": "import nothing_of_this_name"}, 1),
        ([], {"a": "def test_a(): raise KeyboardInterrupt"}, 2),
        (["-x"], {"a": flaky("a", 1), "b": PASSES}, 1),
        ([], {"a": "import os\ndef test_a(): os._exit(1)"}, 1),
        (["--unheard-of"], {"a": PASSES}, 4),
        ([], {"a": ""}, 5),
    ],
    ids=["passed", "not collected", "partly collected", "interrupted", "stopped", "crashed", "called wrongly", "empty"],
)
def test_all_else_keeps_its_exit_code(run: Run, arguments: list[str], sources: dict[str, str], code: int) -> None:
    result = run(*arguments, **sources)
    assert result.ret == code
    assert "alone" not in result.stdout.str()


def test_under_xdist_too_flaky_is_green_and_exact_and_crashed_are_red(run: Run) -> None:
    assert run("-n", "1", a=flaky("a", 1)).ret == 0
    exact = run("-n", "1", "test_b.py", b=flaky("exact", 1))
    assert exact.ret == 1
    exact.stdout.fnmatch_lines(["red, and not run again: test_b.py::test_exact: exact"])
    crashed = run("-n", "1", "test_c.py", c="import os\ndef test_c(): os._exit(1)")
    assert crashed.ret == 1
    assert "alone" not in crashed.stdout.str()


def test_a_list_of_another_session_is_removed(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "build").mkdir()
    (pytester.path / "build" / "flaky.txt").write_text("old")
    assert run(a=PASSES).ret == 0
    assert not (pytester.path / "build" / "flaky.txt").exists()


def test_objections() -> None:
    one = Failure("a", "", exact=False)
    assert objection([one]) == ""
    assert "no test failed" in objection([])
    assert "b: exact" in objection([one, Failure("b", "", exact=True)])


def test_tests_are_run_again_until_one_fails() -> None:
    ran: list[str] = []

    def passes(nodeid: str) -> bool:
        ran.append(nodeid)
        return len(ran) < 4

    assert find_broken([Failure("a", "", False), Failure("b", "", False)], passes) == "b"
    assert ran == ["a", "b", "a", "b"]


def test_the_report_ends_with_a_line_for_each() -> None:
    text = report([Failure("a", "how", False), Failure("b", "why", False)])
    assert text.splitlines()[-3:-1] == ["flaky: a", "flaky: b"]


def test_the_table_of_exact_tests_names_what_there_is(pytestconfig: pytest.Config) -> None:
    conftest = next(plugin for plugin in pytestconfig.pluginmanager.get_plugins() if hasattr(plugin, "EXACT"))
    for name in conftest.EXACT:
        path, _, test = name.partition("::")
        assert (pytestconfig.rootpath / path).exists(), name
        assert not test or f"def {test}(" in (pytestconfig.rootpath / path).read_text(), name
    assert conftest.is_exact("tests/unit/core/test_request.py::test_a[x]")
    assert conftest.is_exact(f"{conftest.EXACT[-1]}[x]")
    assert not conftest.is_exact("tests/unittest/test_a.py::test_a")
