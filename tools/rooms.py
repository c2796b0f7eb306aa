"""Find the tests of rooms: `python tools/rooms.py pytest elastic` prints folders and files for pytest.

A room's tests have its name below `tests`: folders, files named `test_ROOM.py`, and native tests with this label in
CMake. The folders of `tests`, such as `unit`, are also rooms, and `unit/elastic` is a part of one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"


def native_rooms(tests: Path) -> list[str]:
    """Return the rooms of the native tests."""
    listed = (tests / "native" / "CMakeLists.txt").read_text()
    return re.findall(r"^native_test\((\w+)", listed, re.MULTILINE)


def places(tests: Path) -> dict[Path, tuple[str, ...]]:
    """Return all folders and files with tests for pytest, and the parts of each path below `tests`."""
    found = {}
    for file in tests.rglob("test_*.py"):
        for path in (file, *file.parents):
            if path == tests:
                break
            found[path] = path.relative_to(tests).with_suffix("").parts
    return {path: (*names[:-1], names[-1].removeprefix("test_")) for path, names in found.items()}


def names(tests: Path) -> list[str]:
    """Return the names of all rooms: folders of tests."""
    folders = {parts[-1] for path, parts in places(tests).items() if path.is_dir()}
    return sorted({"native", *folders, *native_rooms(tests)})


def paths_of(room: str, tests: Path) -> list[Path]:
    """Return the paths of a room's tests for pytest, without paths inside others."""
    if (tests / room) in places(tests):
        return [tests / room]
    wanted = tuple(room.split("/"))
    found = [path for path, parts in places(tests).items() if parts[-len(wanted) :] == wanted]
    return sorted(path for path in found if not any(parent in found for parent in path.parents))


def native_of(room: str, tests: Path) -> list[str]:
    """Return the labels of a room's native tests."""
    rooms = native_rooms(tests)
    if room == "native":
        return rooms
    name = room.removeprefix("native/")
    return [name] if name in rooms else []


def select(kind: str, rooms: Sequence[str], tests: Path = TESTS) -> str:
    """Return arguments for pytest, or an expression of labels for ctest; raise LookupError for an unknown room."""
    for room in rooms:
        if not paths_of(room, tests) and not native_of(room, tests):
            raise LookupError(f"there is no room {room!r} with tests; choose from {', '.join(names(tests))}")
    if kind == "native":
        labels = sorted({label for room in rooms for label in native_of(room, tests)})
        return f"^({'|'.join(labels)})$" if labels else ""
    found = sorted({path for room in rooms for path in paths_of(room, tests)})
    return " ".join(path.relative_to(tests.parent).as_posix() for path in found)


if __name__ == "__main__":
    try:
        print(select(sys.argv[1], sys.argv[2:]))
    except LookupError as error:
        sys.exit(f"error: {error}")
