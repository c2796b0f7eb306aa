"""`pytest --retry-alone`: run failed tests again, each alone, twice; a test that passes both times is flaky, not red.

They run after the session, each time in a separate pytest. The exit code is 0 only if every test that failed passes
both times, there are no more than `LIMIT` of them, and none is exact: has the marker `exact`, or failed in a line that
matches one of the expressions of `exact_failures` in the configuration. Everything else remains red: a session that was
interrupted, stopped early or could not collect, and a crashed worker of pytest. The list of flaky tests ends the
output, and is written to a file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

TIMES = 2
LIMIT = 3


class Failure(NamedTuple):
    """A failed test: its name, its first failure, and whether it is exact."""

    nodeid: str
    text: str
    exact: bool


def objection(failures: Iterable[Failure]) -> str:
    """Return why these tests are not run again; "": they are."""
    failures = list(failures)
    exact = [failure.nodeid for failure in failures if failure.exact]
    if not failures:
        return "no test failed, but the session did"
    if exact:
        return f"{', '.join(exact[:LIMIT])}: exact"
    if len(failures) > LIMIT:
        return f"{len(failures)} tests failed, and more than {LIMIT} that are flaky are too many"
    return ""


def find_broken(failures: Iterable[Failure], passes: Callable[[str], bool]) -> str:
    """Run all tests again until one fails, and return its name; "": all pass each time."""
    for _ in range(TIMES):
        for failure in failures:
            if not passes(failure.nodeid):
                return failure.nodeid
    return ""


def report(failures: Iterable[Failure]) -> str:
    """Return the list of flaky tests, with the failure of each."""
    failures = list(failures)
    texts = [f"--- flaky: {failure.nodeid}\n{failure.text}\n" for failure in failures]
    names = [f"flaky: {failure.nodeid}" for failure in failures]
    end = f"{len(failures)} flaky (at most {LIMIT}): failed in the session, passed {TIMES} times alone"
    return "\n".join([*texts, *names, end])


class Failures:
    """Observes a session: which tests failed, and whether all tests have run."""

    def __init__(self, exact_lines: Iterable[str]) -> None:
        self.all_ran = True
        self.found: dict[str, Failure] = {}
        self._exact_lines = [re.compile(line) for line in exact_lines]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            text = report.longreprtext
            exact = "exact" in report.keywords or self._is_exact(text)
            self.found.setdefault(report.nodeid, Failure(report.nodeid, text, exact))
            # Otherwise pytest-xdist reports that one of its workers has crashed.
            self.all_ran &= report.when in ("setup", "call", "teardown")

    def _is_exact(self, text: str) -> bool:
        # A traceback marks the line that failed.
        failed = [line for line in text.splitlines() if line.startswith(">")]
        return any(line.search(each) for line in self._exact_lines for each in failed)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.all_ran &= not report.failed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.all_ran &= not (session.shouldstop or session.shouldfail)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--retry-alone", action="store_true", help="run failed tests again, alone, twice")
    parser.addini("exact_failures", "regular expressions: what fails in such a line is not run again", "linelist", [])
    parser.addoption("--flaky-file", default="build/flaky.txt", help="where --retry-alone lists flaky tests")


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, int, int]:
    if not config.getoption("--retry-alone") or hasattr(config, "workerinput"):
        return (yield)
    file = config.rootpath / config.getoption("--flaky-file")
    file.unlink(missing_ok=True)
    failures = Failures(config.getini("exact_failures"))
    config.pluginmanager.register(failures)
    code = yield
    if code != pytest.ExitCode.TESTS_FAILED or not failures.all_ran:
        return code
    return settle(list(failures.found.values()), config, file, code)


def settle(failures: list[Failure], config: pytest.Config, file: Path, code: int) -> int:
    """Find out whether all failed tests are flaky, report it, and return the exit code."""

    def passes(nodeid: str) -> bool:
        return run_alone(nodeid, config)

    print()
    if why := objection(failures):
        print(f"red, and not run again: {why}")
        return code
    if broken := find_broken(failures, passes):
        print(f"red: failed alone, too: {broken}")
        return code
    text = report(failures)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")
    print(f"{text}; see {file.relative_to(config.rootpath)}")
    return pytest.ExitCode.OK


def run_alone(nodeid: str, config: pytest.Config) -> bool:
    """Run one test in a separate pytest; return whether it passed."""
    print(f"alone again: {nodeid}", flush=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(config.rootpath),
        nodeid,
    ]
    if config.inipath:
        command[3:3] = ["-c", str(config.inipath)]
    done = subprocess.run(command, cwd=config.rootpath, capture_output=True, text=True, check=False)
    # A test that is skipped has shown nothing.
    passed = done.returncode == 0 and re.search(r"^1 passed\b", done.stdout, re.MULTILINE) is not None
    if not passed:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return passed
