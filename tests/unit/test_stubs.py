"""The stubs of the front ends say what the declarations say."""

from __future__ import annotations

from tools import stubs


def test_stubs_are_up_to_date() -> None:
    for file, text in stubs.stubs().items():
        assert file.read_text() == text, f"{file} is not up to date: run make fix"
