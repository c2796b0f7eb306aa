"""What torch calls of ours when it is imported."""

from __future__ import annotations

from typing import Any

import pytest

torch_distributed = pytest.importorskip("torch.distributed")

from farandole import autoload  # noqa: E402


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the backend from torch, whether or not torch has found it."""
    others = [name for name in torch_distributed.Backend.backend_list if name != autoload.NAME]
    monkeypatch.setattr(torch_distributed.Backend, "backend_list", others)


def test_backend_is_registered_once(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    registered = []

    def register(name: str, *_: Any, **__: Any) -> None:
        registered.append(name)
        torch_distributed.Backend.backend_list.append(name)

    monkeypatch.setattr(torch_distributed.Backend, "register_backend", register)
    autoload.register_backend()
    autoload.register_backend()
    assert registered == ["farandole"]


def test_failure_to_register_only_warns(unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("torch has changed")

    monkeypatch.setattr(torch_distributed.Backend, "register_backend", fail)
    with pytest.warns(UserWarning, match="will not know the backend 'farandole': torch has changed"):
        autoload.register_backend()


def test_registered_name_is_that_of_the_process_group() -> None:
    from farandole.torch.distributed.process_group import NAME

    assert autoload.NAME == NAME
