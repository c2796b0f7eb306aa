"""A launcher whose pod is deleted ends at once, or once a successor could take over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from farandole.control.kubernetes.launcher_pod import __main__ as program


class FakeWriter:
    """Has told agents that there can be no successor, until the API server is there."""

    def __init__(self, lapsed: bool) -> None:
        self.gate = SimpleNamespace(lapsed=lapsed)
        self.is_written = asyncio.Event()

    async def can_be_followed(self, seconds: float) -> bool:
        """Wait for the API server."""
        await asyncio.wait_for(self.is_written.wait(), seconds)
        return True


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return with which codes the program would have ended."""
    codes: list[int] = []
    monkeypatch.setattr(program.os, "_exit", codes.append)
    monkeypatch.setattr(program, "_TELLING_SECONDS", 0.0)
    return codes


def test_launcher_ends_at_once_if_successor_can_take_over(ends: list[int]) -> None:
    leaving = program._Leaving(FakeWriter(lapsed=False))  # type: ignore[arg-type]
    leaving.asked()
    assert ends == [program.ASKED_TO_GO]


def test_launcher_waits_until_agents_expect_a_successor(ends: list[int]) -> None:
    async def ask() -> Any:
        writer = FakeWriter(lapsed=True)
        leaving = program._Leaving(writer)  # type: ignore[arg-type]
        leaving.asked()
        leaving.asked()
        await asyncio.sleep(0.05)
        assert ends == []
        writer.is_written.set()
        assert leaving._task is not None
        await leaving._task

    asyncio.run(ask())
    assert ends == [program.ASKED_TO_GO]
