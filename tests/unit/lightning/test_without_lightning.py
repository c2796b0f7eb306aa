"""What `farandole.lightning` says where Lightning is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_without_lightning_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "farandole.lightning", raising=False)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"needs Lightning, which is not installed here. Run: pip install 'farandole\[lightning\]'",
    ):
        importlib.import_module("farandole.lightning")
