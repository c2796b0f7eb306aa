"""The structure of the house: what may see what, and that the documents speak of what is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import settings_docs

from farandole.base.settings.table import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
PACKAGE = ROOT / "src" / "farandole"

# What the native core may take from the system: the C and C++ libraries, and Linux.
SYSTEM_FOLDERS = {"arpa", "linux", "net", "netinet", "sys"}
FOREIGN_HEADERS = {"Python.h", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "hip.h", "mpi.h", "nccl.h", "rccl.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def native_files() -> list[Path]:
    files = sorted(file for file in NATIVE.rglob("*") if file.suffix in {".h", ".cc"})
    assert files, f"no native files under {NATIVE}"
    return files


def includes(file: Path) -> list[tuple[str, str]]:
    """Return the kind of quote and the name of each include."""
    return INCLUDE.findall(file.read_text())


def rooms() -> dict[str, set[str]]:
    """Return the rooms and what each sees directly, as native/CMakeLists.txt says."""
    line = r"^room\((\w+)(?: SEES ([\w ]+?))?(?: APART [\w ]+)?\)"
    found = re.findall(line, (NATIVE / "CMakeLists.txt").read_text(), re.MULTILINE)
    return {name: set(seen.split()) for name, seen in found}


def reach(room: str, arrows: dict[str, set[str]]) -> set[str]:
    """Return a room and all that it sees, directly or not."""
    return {room}.union(*(reach(seen, arrows) for seen in arrows[room]))


def run_python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


# --- native ------------------------------------------------------------------------------------------------------


def test_every_native_folder_is_a_room() -> None:
    assert {file.relative_to(NATIVE).parts[0] for file in native_files()} == set(rooms())


@pytest.mark.parametrize("file", native_files(), ids=lambda file: str(file.relative_to(NATIVE)))
def test_native_file_includes_only_the_system_and_rooms_below(file: Path) -> None:
    seen = reach(file.relative_to(NATIVE).parts[0], rooms())
    for quote, name in includes(file):
        folder = name.rpartition("/")[0].split("/")[0]
        if quote == "<":
            assert folder in SYSTEM_FOLDERS | {""}, f"<{name}> belongs to somebody else"
            assert name not in FOREIGN_HEADERS, f"<{name}> is a framework's"
        else:
            assert folder in seen, f'"{name}" is not in a room that this one sees: {sorted(seen)}'


def test_library_has_nothing_of_the_loopback_of_tests() -> None:
    for file in native_files():
        if file.parent.name != "loopback":
            assert not [name for _, name in includes(file) if name.startswith("transport/loopback/")]
    binding = run_python("-c", "from farandole.worker.core import binding; print(binding.library_path(None))").strip()
    assert b"oopback" not in Path(binding).read_bytes()


C_LIBRARY = {"libc", "libm", "libpthread", "libdl", "librt", "ld-linux-x86-64"}


def needed_by(library: str) -> set[str]:
    """Return the libraries that one of ours needs."""
    binding = run_python("-c", "from farandole.worker.core import binding; print(binding.library_path(None))").strip()
    path = Path(binding).with_name(library)
    try:
        dynamic = subprocess.run(["readelf", "--dynamic", path], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("readelf is not installed")
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))


def test_library_needs_nothing_but_the_c_library() -> None:
    assert {name.split(".so")[0] for name in needed_by("libfarandole.so")} <= C_LIBRARY


def test_plugin_needs_our_library_and_tensorflow_by_the_name_that_all_versions_have() -> None:
    needed = needed_by("libfarandole_tensorflow.so")
    assert needed >= {"libfarandole.so", "libtensorflow_framework.so.2"}
    others = needed - {"libfarandole.so", "libtensorflow_framework.so.2"}
    assert {name.split(".so")[0] for name in others} <= C_LIBRARY


def test_plugin_for_jax_needs_our_library_and_nothing_of_jax() -> None:
    needed = needed_by("libfarandole_jax.so")
    assert "libfarandole.so" in needed
    assert {name.split(".so")[0] for name in needed - {"libfarandole.so"}} <= C_LIBRARY


CMAKE_PROJECT = """\
cmake_minimum_required(VERSION 3.24)
project(two_rooms LANGUAGES CXX)
add_library(farandole_options INTERFACE)
include({room})
room(lower)
room(upper SEES lower)
"""


def test_an_include_against_the_arrows_does_not_compile(tmp_path: Path) -> None:
    for room, other in (("lower", "upper"), ("upper", "lower")):
        (tmp_path / room).mkdir()
        (tmp_path / room / "door.h").write_text("#pragma once\n")
        (tmp_path / room / "inside.cc").write_text(f'#include "{room}/door.h"\n#include "{other}/door.h"\n')
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(room=ROOT / "cmake" / "room.cmake"))
    build = tmp_path / "build"
    subprocess.run(["cmake", "-G", "Ninja", "-S", tmp_path, "-B", build], check=True, capture_output=True)

    def compile_room(room: str) -> subprocess.CompletedProcess[str]:
        command = ["cmake", "--build", str(build), "--target", f"room_{room}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    wrong = compile_room("lower")
    assert wrong.returncode != 0
    assert "upper/door.h" in wrong.stdout
    (tmp_path / "lower" / "inside.cc").write_text('#include "lower/door.h"\n')
    right = compile_room("upper")
    assert right.returncode == 0, right.stdout


# --- Python ------------------------------------------------------------------------------------------------------


def modules_and_maps_after(statement: str) -> tuple[set[str], str]:
    """Run a statement in a fresh interpreter; return the modules it has then, and what it has mapped."""
    told = run_python("-c", f"import sys\n{statement}\nprint(*sys.modules)\nprint(open('/proc/self/maps').read())")
    modules, _, maps = told.partition("\n")
    return set(modules.split()), maps


@pytest.mark.parametrize(
    "statement",
    [
        "import farandole",
        "import farandole.worker.core.basics",
        "import farandole.control.cli.main; farandole.control.cli.main.make_parser()",
        "import farandole.control.launcher.supervise.supervisor, farandole.control.roster.service",
    ],
)
def test_the_control_side_loads_no_framework_and_no_library(statement: str) -> None:
    modules, maps = modules_and_maps_after(statement)
    assert "farandole" in modules
    assert not modules & {"torch", "numpy", "tensorflow", "jax", "mxnet"}
    assert "libfarandole" not in maps


# --- what is written down --------------------------------------------------------------------------------------------


def test_architecture_names_every_room_and_package() -> None:
    text = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    packages = {
        ".".join(path.parent.relative_to(PACKAGE).parts)
        for pattern in ("*/__init__.py", "base/*/__init__.py", "control/*/__init__.py", "worker/*/__init__.py")
        for path in PACKAGE.glob(pattern)
    }
    missing = [f"native/{room}" for room in rooms() if f"`native/{room}`" not in text]
    missing += [package for package in sorted(packages) if f"`farandole.{package}`" not in text]
    assert not missing


def test_a_collective_is_named_only_where_contributing_says() -> None:
    """In any spelling. Stubs are generated, so their names do not count."""
    declared = {
        "native/backend/nccl/launch.cc",
        "native/capi/farandole.h",
        "native/collective/algorithm_table.cc",
        "native/collective/algorithm_table.h",
        "native/collective/reducescatter/",
        "native/engine/kind.h",
        "native/engine/kinds/",
        "src/farandole/base/request_kind.py",
        "src/farandole/jax/gradients.py",
        "src/farandole/worker/collectives/all_collectives.py",
        "src/farandole/worker/collectives/reducescatter.py",
    }
    algorithms_of_others = {"native/collective/allreduce/", "native/collective/reduce/"}
    names_of_others = {
        "native/backend/nccl/abi.h",
        "src/farandole/compat/runner/unused_variables.py",
        "src/farandole/torch/distributed/process_group.py",
        "src/farandole/torch/distributed/reduce_calls.py",
    }
    name = re.compile("reduce_?scatter", re.IGNORECASE)
    files = [*native_files(), *PACKAGE.rglob("*.py")]
    naming = {str(file.relative_to(ROOT)) for file in files if name.search(file.read_text())}
    places = declared | algorithms_of_others | names_of_others
    assert {next((place for place in places if file.startswith(place)), file) for file in naming} == places


def test_the_version_is_written_in_one_place() -> None:
    cmake = re.search(r"project\(farandole VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert cmake
    code = "import farandole; from farandole.worker.core import binding; "
    told = run_python("-c", code + "print(farandole.__version__, binding.load().farandole_version().decode())")
    assert told.split() == [cmake[1], cmake[1]]


def documentation() -> str:
    return "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))


def test_every_setting_is_in_the_documentation() -> None:
    text = documentation()
    variables = [row.variables[0] for row in SETTINGS.values()]
    assert [name for name in variables if not re.search(rf"\b{name}\b", text)] == []


def test_tables_of_settings_in_the_documentation_are_current() -> None:
    pages = {path.name: path.read_text() for path in settings_docs.DOCS.rglob("*.md")}
    assert "<!-- settings: all -->" in pages["settings.md"]
    assert [name for name, page in pages.items() if settings_docs.rendered(page) != page] == [], "make fix"


def test_every_flag_of_run_is_in_the_documentation() -> None:
    text = documentation()
    flags = set(re.findall(r"--[a-z][a-z-]+[a-z]", run_python("-m", "farandole", "run", "--help-all")))
    assert [flag for flag in sorted(flags) if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_between_documents_lead_somewhere(document: str) -> None:
    page = ROOT / document
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize(
    "document",
    [
        "CONTRIBUTING.md",
        "docs/contributing/architecture.md",
        "docs/reference/wire.md",
        "docs/contributing/elastic.md",
    ],
)
def test_paths_that_documents_name_exist(document: str) -> None:
    paths = re.findall(
        r"`((?:benchmarks|cmake|examples|native|src|tests|tools)/[\w./-]+\.\w+)`", (ROOT / document).read_text()
    )
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
