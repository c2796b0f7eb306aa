"""Environments for frameworks that need one of their own: what is installed, and what is skipped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tools import frameworks, verified

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "environment"), frameworks.ENVIRONMENTS.items())
def test_a_row_pins_its_packages_and_names_tests_that_are_there(name: str, environment: Any) -> None:
    assert environment.pythons
    assert all("==" in package for package in (*environment.packages, *environment.alone))
    places = [argument for argument in environment.tests if argument.startswith("tests/")]
    assert places
    assert all((ROOT / place).exists() for place in places)


def test_pins_of_a_row_take_the_place_of_the_projects() -> None:
    text = "# pins\nnumpy==2.5.1; python_version >= '3.11'\nNumpy==2.2.6\nscikit_learn==1.9\nnumpydoc==1\n"
    assert frameworks.constraints(text, ["numpy==1.23.5", "scikit-learn==1.5.2"]) == "# pins\nnumpydoc==1\n"


def test_what_the_project_needs_comes_on_top() -> None:
    project = {
        "project": {"dependencies": ["msgspec>=0.18"]},
        "dependency-groups": {"test": ["build", "pytest", "pytest-timeout"]},
    }
    assert frameworks.needed(project) == ["msgspec>=0.18", "pytest", "pytest-timeout"]


def test_a_python_is_found_by_its_version() -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    assert frameworks.find_python(["2.1", here]) == sys.executable
    assert frameworks.find_python(["2.1"]) is None


def test_a_python_that_pyenv_has_but_not_chosen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shims").mkdir()
    python = tmp_path / "versions" / "2.1.7" / "bin" / "python2.1"
    python.parent.mkdir(parents=True)
    for path, status in ((tmp_path / "shims" / "python2.1", 127), (python, 0)):
        path.write_text(f"#!/bin/sh\nexit {status}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "shims"), prepend=":")
    assert frameworks.find_python(["2.1"]) == str(python)


def test_what_was_skipped_or_failed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = frameworks.ENVIRONMENTS["mxnet"]
    rows = {"old": row._replace(pythons=("2.1", "2.2")), "good": row, "bad": row._replace(tests=("tests/bad",))}
    monkeypatch.setattr(frameworks, "ENVIRONMENTS", rows)
    monkeypatch.setattr(frameworks, "find_python", lambda versions: None if "2.1" in versions else sys.executable)
    monkeypatch.setattr(frameworks, "prepare", lambda *row: Path(sys.executable))
    monkeypatch.setattr(frameworks, "test", lambda python, tests: tests != ("tests/bad",))
    assert frameworks.main([]) == 1
    assert capsys.readouterr().out.endswith(
        "old: skipped: no Python 2.1 or 2.2 with venv was found\ngood: passed\nbad: FAILED\n"
    )
    assert frameworks.main(["old", "good"]) == 0
    assert frameworks.main(["old", "good", frameworks.FOR_RECORD]) == verified.IN_PART
    assert frameworks.main(["good", frameworks.FOR_RECORD]) == verified.IN_PART
    # One on demand is a check of its own.
    monkeypatch.setattr(frameworks, "ENVIRONMENTS", {"good": row._replace(on_demand=True), "bad": rows["bad"]})
    assert frameworks.main(["good", frameworks.FOR_RECORD]) == 0
    assert frameworks.main([]) == 1
    monkeypatch.setattr(frameworks, "ENVIRONMENTS", {"good": row})
    assert frameworks.main([frameworks.FOR_RECORD]) == 0
    monkeypatch.setattr(frameworks, "ENVIRONMENTS", rows)
    capsys.readouterr()
    assert frameworks.main(["older"]) == 2
    assert "unknown environment older; choose from old, good, bad" in capsys.readouterr().err
