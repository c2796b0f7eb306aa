"""Horovod's questions about the build: what they answer with and without NCCL's backend and library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.base import nccl_library
from farandole.worker.core import built


class Library:
    """A native library with a table of backends."""

    def __init__(self, absent: str) -> None:
        self._absent = absent

    def farandole_backends(self) -> bytes:
        return json.dumps([{"name": "nccl", "absent": self._absent}]).encode()


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forget what was asked before, and afterwards."""
    for function in (built._includes, nccl_library.version):
        function.cache_clear()
    yield
    for function in (built._includes, nccl_library.version):
        function.cache_clear()


@pytest.mark.parametrize(
    ("absent", "version", "told"), [("", 23007, 23007), ("", 21805, 0), ("", 0, 0), ("not in this build", 23007, 0)]
)
def test_nccl_is_built_if_backend_and_library_are_there(
    monkeypatch: pytest.MonkeyPatch, absent: str, version: int, told: int
) -> None:
    monkeypatch.setattr(built.binding, "load", lambda path: Library(absent))
    monkeypatch.setattr(built.nccl_library, "version", lambda asked: version)
    assert (built.nccl_built(), built.cuda_built()) == (told, not absent)
    monkeypatch.undo()


def test_library_that_does_not_load_includes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FARANDOLE_LIBRARY", str(tmp_path / "libfarandole.so"))
    assert (built.nccl_built(), built.cuda_built()) == (0, False)


def test_questions_without_nccl_load_no_cuda_library() -> None:
    code = (
        "from farandole.worker.core import built\n"
        "built.nccl_built(), built.cuda_built()\n"
        "print(open('/proc/self/maps').read())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "libnccl" not in told and "libcuda" not in told


def test_library_of_a_wheel_is_found(tmp_path: Path) -> None:
    shared, own = tmp_path / "cu13/lib/libnccl.so.2", tmp_path / "nccl/lib/libnccl.so.2"
    assert nccl_library.wheel_path([str(tmp_path)]) is None
    for path in (shared, own):
        path.parent.mkdir(parents=True)
        path.touch()
        assert nccl_library.wheel_path(["/nowhere", str(tmp_path)]) == str(path)


def test_chosen_library_is_the_users_then_the_loaded_one_then_the_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_library, "wheel_path", lambda: "/wheel")
    assert (nccl_library.choose("/mine"), nccl_library.choose()) == ("/mine", "/wheel")
    monkeypatch.setattr(nccl_library, "_loaded", lambda: object())
    assert (nccl_library.choose("/mine"), nccl_library.choose()) == ("/mine", "")


def test_library_that_cannot_be_loaded_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    assert nccl_library.version(str(tmp_path / "libnccl.so.2")) == 0


@pytest.mark.parametrize(("number", "text"), [(23007, "2.30.7"), (21805, "2.18.5"), (2708, "2.7.8")])
def test_versions_as_people_write_them(number: int, text: str) -> None:
    assert nccl_library.version_text(number) == text
