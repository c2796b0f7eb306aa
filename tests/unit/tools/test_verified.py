"""Records of long checks: what makes one count no more, and when one is written."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tools import verified
from tools.verified import CHECKS, ROOT, Check, compare, describe_compiler, look, read, verdict, write

CHECK = Check(("CMakeLists.txt", "native"), {"SEEDS": "100"}, "build/asan")
Edit = Callable[[Path], object]


def fake_compiler(folder: Path, version: str) -> Path:
    compiler = folder / "bin" / "c++"
    compiler.parent.mkdir(exist_ok=True)
    compiler.write_text(f"#!/bin/sh\necho 'c++ {version}'\n")
    compiler.chmod(0o755)
    return compiler


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "native" / "engine").mkdir(parents=True)
    (tmp_path / "native" / "engine" / "engine.cc").write_text("int main() {}\n")
    (tmp_path / "native" / "engine" / "engine.h").write_text("")
    (tmp_path / "native" / "base.h").write_text("#pragma once\n")
    (tmp_path / "CMakeLists.txt").write_text("project(x)\n")
    for name in ("CXXFLAGS", "LDFLAGS", "SEEDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "12.2.0")))
    monkeypatch.setitem(CHECKS, "sanitizers", CHECK)
    return tmp_path


@pytest.mark.parametrize(
    ("edit", "row"),
    [
        (lambda root: (root / "native/engine/engine.cc").write_text("int main() {};"), "native/engine has changed"),
        (lambda root: (root / "native/base.h").write_text("#pragma once"), "native has changed"),
        (lambda root: (root / "CMakeLists.txt").write_text("project(y)\n"), "CMakeLists.txt has changed"),
        (lambda root: (root / "native/engine/new.cc").write_text(""), "native/engine has changed"),
        (lambda root: (root / "native/engine/engine.h").unlink(), "native/engine has changed"),
        (
            lambda root: (root / "native/engine/engine.h").rename(root / "native/engine/a.h"),
            "native/engine has changed",
        ),
        (lambda root: (root / "native/base.h").unlink(), "native is gone"),
        (lambda root: fake_compiler(root, "13.1.0"), "compiler was 'c++ 12.2.0' and is 'c++ 13.1.0'"),
    ],
)
def test_one_byte_a_file_more_or_less_or_another_compiler_makes_the_check_run(
    project: Path, edit: Edit, row: str
) -> None:
    before = look(CHECK, project)
    write("sanitizers", before, project)
    assert verdict("sanitizers", look(CHECK, project), project)[0]
    edit(project)
    assert compare(before, look(CHECK, project)) == [row]
    assert verdict("sanitizers", look(CHECK, project), project) == (
        False,
        "sanitizers: to be run; its files, the compiler or a setting have changed since it passed",
    )


def test_a_folder_more_makes_the_check_run(project: Path) -> None:
    before = look(CHECK, project)
    (project / "native" / "capi").mkdir()
    (project / "native" / "capi" / "capi.cc").write_text("")
    assert compare(before, look(CHECK, project)) == ["native/capi is new"]


@pytest.mark.parametrize(
    ("environment", "row"),
    [
        ({"SEEDS": "10"}, "SEEDS was '100' and is '10'"),
        ({"CXXFLAGS": "-O3"}, "compiler options has changed"),
        ({"LDFLAGS": "-static"}, "compiler options has changed"),
    ],
)
def test_another_setting_makes_the_check_run(project: Path, environment: Mapping[str, str], row: str) -> None:
    base = {"CXX": str(project / "bin" / "c++")}
    assert compare(look(CHECK, project, base), look(CHECK, project, base | environment)) == [row]


def test_what_python_generates_does_not_count(project: Path) -> None:
    before = look(CHECK, project)
    (project / "native" / "__pycache__").mkdir()
    (project / "native" / "__pycache__" / "x.pyc").write_text("")
    assert compare(before, look(CHECK, project)) == []


def test_the_compiler_of_a_build_folder_is_the_one_that_counts(tmp_path: Path) -> None:
    (tmp_path / "CMakeCache.txt").write_text(
        f"# A comment\nCMAKE_CXX_COMPILER:FILEPATH={fake_compiler(tmp_path, '9.9')}\nCMAKE_CXX_FLAGS:STRING=-O3\n"
    )
    cache = verified.read_cache(tmp_path)
    assert describe_compiler(cache, {"CXX": "/not/there"})["compiler"] == "c++ 9.9"
    plain = {**cache, "CMAKE_CXX_FLAGS": ""}
    assert compare(describe_compiler(cache, {}), describe_compiler(plain, {})) == ["compiler options has changed"]


def test_a_fresh_clone_and_a_build_folder_of_the_same_compiler_agree(tmp_path: Path) -> None:
    compiler = str(fake_compiler(tmp_path, "9.9"))
    environment = {"CXX": f"{compiler} -O1", "CXXFLAGS": "-g"}
    cache = {"CMAKE_CXX_COMPILER": compiler, "CMAKE_CXX_FLAGS": "-O1 -g"}
    assert describe_compiler({}, environment) == describe_compiler(cache, environment)


def run_python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_check_that_passes_is_recorded(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert verdict("sanitizers", look(CHECK, project), project) == (False, "sanitizers: to be run; it has no record")
    assert verified.record("sanitizers", run_python("print('ran')"), project) == 0
    said = capfd.readouterr().out
    assert "ran" in said
    assert "recorded in tests/verified.txt" in said
    assert verdict("sanitizers", look(CHECK, project), project)[0]


def test_a_check_that_fails_is_not_recorded(project: Path) -> None:
    assert verified.record("sanitizers", run_python("raise SystemExit(7)"), project) == 7
    assert read(project) == []


def test_a_check_that_ran_in_part_passes_and_is_not_recorded(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verified.record("sanitizers", run_python(f"raise SystemExit({verified.IN_PART})"), project) == 0
    assert "sanitizers: passed, but not recorded: a part of it could not be run here" in capsys.readouterr().err
    assert read(project) == []


def test_a_check_is_not_recorded_if_files_change_while_it_runs(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit = f"open({str(project / 'native' / 'base.h')!r}, 'a').write('x')"
    assert verified.record("sanitizers", run_python(edit), project) == 0
    assert "not recorded: meanwhile native has changed" in capsys.readouterr().err
    assert read(project) == []


def test_a_record_names_no_path_of_the_machine(project: Path) -> None:
    verified.record("sanitizers", run_python(""), project)
    assert str(project) not in (project / verified.RECORDS).read_text()


def test_record_replaces_earlier_records_of_the_check_and_keeps_those_of_others(project: Path) -> None:
    write("models", {"Python": "3.11"}, project)
    write("sanitizers", {"SEEDS": "1"}, project)
    write("sanitizers", {"SEEDS": "2"}, project)
    assert [name for name, _ in read(project)] == ["models", "sanitizers"]


def test_records_of_two_branches_merge_without_conflict(project: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)

    def commit(seeds: str) -> None:
        write("sanitizers", look(CHECK, project, {"SEEDS": seeds, "CXX": "c++"}), project)
        git("add", "--all")
        git("commit", "-m", "record")

    (project / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    git("init", "--initial-branch=main")
    commit("1")
    git("switch", "--create", "other")
    commit("2")
    git("switch", "main")
    commit("3")
    git("merge", "other")
    for seeds, counts in (("1", False), ("2", True), ("3", True)):
        assert verdict("sanitizers", look(CHECK, project, {"SEEDS": seeds, "CXX": "c++"}), project)[0] is counts


def test_a_folder_on_which_nothing_depends_does_not_count(project: Path) -> None:
    check = CHECK._replace(without=("native/engine",))
    before = look(check, project)
    assert "native/engine" not in before
    (project / "native" / "engine" / "engine.cc").write_text("")
    assert compare(before, look(check, project)) == []


LOADED = """
import sys
sys.modules.pop("sitecustomize", None)  # What processes of tests begin with, see tests/support/at_start.
sys.path[:0] = ["tests/unit/roster", "tests/unit/elastic", "tests/support"]
import test_model, test_schedules
print(*(module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)), sep="\\n")
"""


def test_the_models_depend_on_nothing_that_does_not_count() -> None:
    said = subprocess.run(run_python(LOADED), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    check = CHECKS["models"]

    def is_in(file: Path, names: Sequence[str]) -> bool:
        return any(file.is_relative_to(ROOT / name) for name in names)

    folders = (ROOT / "src", ROOT / "tests")
    files = [file for file in map(Path, said.split("\n")) if any(map(file.is_relative_to, folders))]
    assert ROOT / "src" / "farandole" / "control" / "roster" / "next_world.py" in files
    assert [file for file in files if not is_in(file, check.inputs) or is_in(file, check.without)] == []


@pytest.mark.parametrize("name", CHECKS)
def test_all_that_a_check_names_is_there(name: str) -> None:
    assert [name for name in CHECKS[name].inputs if not (ROOT / name).exists()] == []


def test_the_environment_may_name_a_compiler_with_options(tmp_path: Path) -> None:
    compiler = str(fake_compiler(tmp_path, "1"))
    described = describe_compiler({}, {"CXX": shlex.join([compiler, "-m32"])})
    assert described["compiler"] == "c++ 1"
    assert described["compiler options"] != describe_compiler({}, {"CXX": compiler})["compiler options"]
