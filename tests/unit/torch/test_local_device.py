"""Which GPU of its host a worker takes."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd
from farandole.worker.core import basics


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Return the devices that are made the current one, on a host with four GPUs."""
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setattr(basics, "local_rank", lambda: 2)
    monkeypatch.delenv("FARANDOLE_LOCAL_RANK", raising=False)
    return made


def test_a_worker_of_another_launcher_takes_the_gpu_of_its_local_rank(chosen: list[torch.device]) -> None:
    assert hvd.local_device() == torch.device("cuda", 2)
    assert chosen == [torch.device("cuda", 2)]


def test_a_worker_in_a_slot_keeps_its_gpu_when_its_local_rank_changes(
    chosen: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_LOCAL_RANK", "3")
    assert hvd.local_device() == torch.device("cuda", 3)


def test_more_workers_than_gpus_share_them(chosen: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_LOCAL_RANK", "5")
    assert hvd.local_device() == torch.device("cuda", 1)


def test_without_a_gpu_it_is_the_cpu(chosen: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert hvd.local_device() == torch.device("cpu")
    assert chosen == []
