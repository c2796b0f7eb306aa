"""Which tests belong to a room: `make test ROOM=...`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import rooms
from tools.rooms import select


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    for name in (
        "unit/elastic/test_ledger.py",
        "unit/launcher/elastic/test_a.py",
        "unit/ro/test_elastic.py",
        "integration/elastic/test_soak.py",
        "compat/test_hosts.py",
        "hosts/test_launch.py",
    ):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text("")
    (tests / "native").mkdir()
    (tests / "native" / "CMakeLists.txt").write_text(
        "function(native_test ROOM)\n\nnative_test(base 1)\nnative_test(engine 2)\n"
    )
    return tests


@pytest.mark.parametrize(
    ("names", "paths", "labels"),
    [
        (
            ["elastic"],
            "tests/integration/elastic tests/unit/elastic tests/unit/launcher/elastic tests/unit/ro/test_elastic.py",
            "",
        ),
        (["unit/elastic"], "tests/unit/elastic", ""),
        (["unit"], "tests/unit", ""),
        (["hosts"], "tests/hosts", ""),
        (["engine"], "", "^(engine)$"),
        (["native/engine"], "", "^(engine)$"),
        (["native"], "", "^(base|engine)$"),
        (["ro", "base"], "tests/unit/ro", "^(base)$"),
    ],
)
def test_a_room_has_all_tests_of_its_name(names: list[str], paths: str, labels: str, tests: Path) -> None:
    assert select("pytest", names, tests) == paths
    assert select("native", names, tests) == labels


@pytest.mark.parametrize("kind", ["pytest", "native"])
def test_an_unknown_room_is_refused_with_a_list_of_all(kind: str, tests: Path) -> None:
    with pytest.raises(LookupError, match=r"room 'elastik' with tests; choose from base, compat, .*unit"):
        select(kind, ["elastic", "elastik"], tests)


def test_every_folder_of_tests_is_a_room() -> None:
    folders = {file.relative_to(rooms.TESTS).parts[0] for file in rooms.TESTS.rglob("test_*.py")}
    assert {"native", *folders} <= set(rooms.names(rooms.TESTS))
