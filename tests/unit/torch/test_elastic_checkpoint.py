"""Checkpoints of PyTorch's state on real files: what comes back, what faults leave behind, what training waits for."""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds_of_state import check_same, plain_kinds, torch_kinds

from farandole.base.settings.table import Settings
from farandole.errors import CheckpointError, InvalidRequestError
from farandole.torch.elastic.checkpoint import Checkpoint

pytest.importorskip("safetensors", reason="safetensors is not installed")

WAIT_SECONDS = 60.0
FORMATS = ("safetensors", "dcp")
Lines = list[tuple[str, str]]


@pytest.fixture
def lines() -> Lines:
    """Return what is said to the user."""
    return []


def world(directory: Path, size: int, lines: Lines, **options: Any) -> list[Checkpoint]:
    """Return the checkpoints of `size` ranks, which in this test live in one process."""
    return [
        Checkpoint(directory, say=lambda level, text: lines.append((level, text)), run="r", **options)
        for _ in range(size)
    ]


def save(ranks: list[Checkpoint], state: Any, step: int, **options: Any) -> bool:
    for rank, checkpoint in enumerate(ranks):
        assert checkpoint.save(state, step, rank=rank, size=len(ranks), **options)
    return all([checkpoint.wait(WAIT_SECONDS) for checkpoint in ranks])


def train(seed: int, width: int = 64) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model with tied weights and an optimizer that has taken a step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, width)
    )
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.rand(4, width)).square().sum().backward()
    optimizer.step()
    return model, optimizer


def assert_equal(one: Any, other: Any) -> None:
    """Compare two states with all types, and bit by bit."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other


# --- what comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [1, 3])
def test_model_and_optimizer_come_back_in_a_fresh_process_of_another_world(
    tmp_path: Path, size: int, format: str, lines: Lines
) -> None:
    model, optimizer = train(0, width=300)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ledger": b"\0\xff", "epoch": 3}
    assert save(world(tmp_path, size, lines, format=format), state, 1200, epoch=3)
    fresh_model, fresh_optimizer = train(1, width=300)
    fresh_scheduler = torch.optim.lr_scheduler.MultiStepLR(fresh_optimizer, [9])
    into = {"model": fresh_model, "optimizer": fresh_optimizer, "scheduler": fresh_scheduler, "ledger": b"", "epoch": 0}
    (reader,) = world(tmp_path, 1, lines)
    assert reader.load(into) == 1200
    assert_equal(model.state_dict(), fresh_model.state_dict())
    assert_equal(optimizer.state_dict(), fresh_optimizer.state_dict())
    assert_equal(scheduler.state_dict(), fresh_scheduler.state_dict())
    assert (into["ledger"], into["epoch"]) == (b"\0\xff", 3)
    assert fresh_model[2].weight is fresh_model[0].weight
    assert [level for level, _ in lines] == ["info", "info"]
    assert f"which a world of {size} wrote" in lines[1][1]


def every_kind() -> dict[str, Any]:
    torch.manual_seed(0)
    wide = torch.randn(1200, 700)
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
    tensors = {str(kind): (wide * 10).to(kind) for kind in kinds}
    return {
        **tensors,
        "complex": torch.randn(5, 3, dtype=torch.complex64),
        "float8": wide[:3].to(torch.float8_e4m3fn),
        "scalar": torch.tensor(3.5),
        "scalar complex": torch.tensor(1 + 2j, dtype=torch.complex128),
        "empty": torch.empty(0, 4),
        "empty rows": torch.empty(3, 0, dtype=torch.bfloat16),
        "transposed": wide.t(),
        "strided": wide[::2, ::3],
        "expanded": torch.randn(1, 7).expand(5000, 7),
        "conjugate": torch.randn(9, dtype=torch.complex64).conj(),
        "one row": torch.randn(1, 900_000),
        "needs gradient": torch.randn(3, requires_grad=True),
        "special": torch.tensor([float("nan"), float("inf"), -0.0]),
        "nested": {0: [torch.arange(3), {"deep": (torch.arange(4), None)}], "0": 1},
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_every_kind_of_tensor_comes_back(tmp_path: Path, size: int, format: str, lines: Lines) -> None:
    state = every_kind()
    assert save(world(tmp_path, size, lines, format=format), {"all": state}, 0)
    into: dict[str, Any] = {"all": None}
    assert world(tmp_path, 1, lines)[0].load(into) == 0
    state["conjugate"] = state["conjugate"].resolve_conj()
    assert_equal(into["all"], state)
    if format == "safetensors":
        sizes = [path.stat().st_size for path in tmp_path.rglob("shard*")]
        assert len(sizes) == size and max(sizes) - min(sizes) < 4_000_000, "the work is shared"


def test_checkpoint_of_a_hundred_megabytes_is_loaded(tmp_path: Path, lines: Lines) -> None:
    state = {"weights": [torch.randn(2_500_000) for _ in range(10)]}
    assert save(world(tmp_path, 3, lines), state, 1)
    into: dict[str, Any] = {"weights": None}
    assert world(tmp_path, 1, lines)[0].load(into) == 1
    assert_equal(into["weights"], state["weights"])


def test_other_programs_can_read_the_files(tmp_path: Path, lines: Lines) -> None:
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.state_dict_loader import load

    model, _ = train(0)
    assert save(world(tmp_path, 1, lines), {"model": model}, 1)
    assert save(world(tmp_path, 1, lines, format="dcp"), {"model": model}, 2)
    read = load_file(tmp_path / "step-00000001" / "shard-00000-of-00001.safetensors")
    assert torch.equal(read["model.0.weight"], model.state_dict()["0.weight"])
    into = {"model": {"0.bias": torch.zeros(64)}}
    load(into, checkpoint_id=tmp_path / "step-00000002", no_dist=True)
    assert torch.equal(into["model"]["0.bias"], model.state_dict()["0.bias"])


def test_numpy_is_not_needed(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['numpy'] = None; import torch; "
        "from farandole.torch.elastic.checkpoint import Checkpoint; checkpoint = Checkpoint(sys.argv[1]); "
        "checkpoint.save({'a': torch.ones(3)}, 9, rank=0, size=1); "
        "assert checkpoint.wait(60) and checkpoint.load({'a': torch.zeros(3)}) == 9"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr


def test_tensors_are_loaded_in_place_and_only_what_is_asked_for(tmp_path: Path, lines: Lines) -> None:
    assert save(world(tmp_path, 1, lines), {"a": torch.ones(3), "b": 1}, 5)
    place = torch.zeros(3)
    (reader,) = world(tmp_path, 1, lines)
    assert reader.load({"a": place}) == 5
    assert place.tolist() == [1, 1, 1]
    with pytest.raises(CheckpointError, match="has no scheduler; it has a, b"):
        reader.load({"scheduler": None})
    for other in (torch.zeros(4), torch.zeros(())):
        with pytest.raises(CheckpointError, match="another one in"):
            reader.load({"b": 0, "a": other})


def test_loaded_tensors_outlive_the_files(tmp_path: Path, lines: Lines) -> None:
    ranks = world(tmp_path, 1, lines, keep=1)
    assert save(ranks, {"a": torch.ones(300_000)}, 1)
    into: dict[str, Any] = {"a": None}
    assert ranks[0].load(into) == 1
    for path in tmp_path.rglob("shard*"):
        path.write_bytes(b"")
    assert into["a"].sum() == 300_000


# --- what is damaged --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_a_damaged_file_is_named_and_the_checkpoint_before_it_used(
    tmp_path: Path, how: str, format: str, lines: Lines
) -> None:
    for step in (1, 2):
        assert save(world(tmp_path, 2, lines, format=format), {"step": torch.full((1000,), step)}, step)
    damaged = max(tmp_path.glob("step-00000002/*[0-9].distcp" if format == "dcp" else "step-00000002/shard-00001*"))
    content = bytearray(damaged.read_bytes())
    content[random.Random(0).randrange(len(content))] ^= 16
    damaged.unlink()
    if how != "missing":
        damaged.write_bytes(content if how == "flipped" else content[:-1])
    into: dict[str, Any] = {"step": None}
    lines.clear()
    assert world(tmp_path, 1, lines)[0].load(into) == 1
    assert into["step"].tolist() == [1] * 1000
    (passed_over, resumed) = lines
    assert passed_over[0] == "warning" and str(damaged) in passed_over[1]
    assert resumed[0] == "info" and "training resumes at step 1 " in resumed[1]


def test_checkpoints_that_are_all_damaged_are_an_error(tmp_path: Path, lines: Lines) -> None:
    into = {"a": 0}
    assert world(tmp_path / "new", 1, lines)[0].load(into) is None
    assert save(world(tmp_path, 1, lines), {"a": 1}, 1)
    (tmp_path / "step-00000001" / "manifest.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"none of the checkpoints in .* can be used: .*manifest.json is damaged"):
        world(tmp_path, 1, lines)[0].load(into)
    assert into == {"a": 0}


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [1, 2])
def test_a_full_disk_keeps_the_last_good_one_and_room_lets_the_next_succeed(
    small_disk: Path, size: int, format: str, lines: Lines
) -> None:
    ranks = world(small_disk, size, lines, format=format)
    state = {"weights": torch.zeros(300_000)}
    assert save(ranks, state, 1)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2_500_000))
    for step in (2, 3):
        state["weights"].fill_(step)
        assert not save(ranks, state, step)
        assert sorted(small_disk.rglob("shard*")) == sorted(small_disk.glob("step-00000001/shard*"))
    assert [level for level, _ in lines] == ["info", "warning"], "it is told once"
    assert "No space left on device" in lines[1][1] and "step-00000001, is kept" in lines[1][1]
    into: dict[str, Any] = {"weights": None}
    assert world(small_disk, 1, lines)[0].load(into) == 1
    assert not into["weights"].any()
    ballast.unlink()
    assert save(ranks, state, 4)
    assert sorted(path.name for path in small_disk.iterdir()) == ["step-00000001", "step-00000004"]
    assert world(small_disk, 1, lines)[0].load(into) == 4
    assert (into["weights"] == 3).all()


def test_a_disk_that_becomes_read_only_does_not_stop_training(small_disk: Path, lines: Lines) -> None:
    ranks = world(small_disk, 1, lines)
    assert save(ranks, {"a": 1}, 1)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert not save(ranks, {"a": 2}, 2)
    assert "step 2 was not written: Read-only file system" in lines[1][1]
    assert ranks[0].load({"a": 0}) == 1
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert save(ranks, {"a": 3}, 3)


# --- while training goes on -------------------------------------------------------------------------------------------


class Gate:
    """Holds a checkpoint's writer up."""

    def __init__(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        write = checkpoint._format.write

        def write_later(*arguments: Any) -> tuple[str, ...]:
            assert self.opened.wait(WAIT_SECONDS)
            return write(*arguments)

        monkeypatch.setattr(checkpoint._format, "write", write_later)


def test_saving_waits_for_the_copy_only_and_training_may_change_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    (checkpoint,) = world(tmp_path, 1, lines)
    gate = Gate(checkpoint, monkeypatch)
    model, optimizer = train(0)
    saved = [tensor.clone() for tensor in model.state_dict().values()]
    assert checkpoint.save({"model": model, "optimizer": optimizer}, 1, rank=0, size=1)
    assert not checkpoint.wait(0.0)
    optimizer.step()
    for step in (2, 3):
        assert not checkpoint.save({"model": model, "optimizer": optimizer}, step, rank=0, size=1), "one at a time"
    gate.opened.set()
    assert checkpoint.wait(WAIT_SECONDS)
    into: dict[str, Any] = {"model": None}
    assert checkpoint.load(into) == 1
    assert_equal(list(into["model"].values()), saved)
    assert [level for level, _ in lines] == ["warning", "info", "info"]
    assert lines[0][1] == (
        "the checkpoint of step 2 is skipped: the checkpoint of step 1 was still being written; training goes on"
    )


def test_wait_if_busy_saves_every_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    (checkpoint,) = world(tmp_path, 1, lines, wait_if_busy=True)
    gate = Gate(checkpoint, monkeypatch)
    assert checkpoint.save({"a": 1}, 1, rank=0, size=1)
    threading.Timer(0.05, gate.opened.set).start()
    assert checkpoint.save({"a": 2}, 2, rank=0, size=1)
    assert checkpoint.wait(WAIT_SECONDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_script_that_ends_after_saving_has_saved(tmp_path: Path) -> None:
    script = (
        "import sys, torch; from farandole.torch.elastic.checkpoint import Checkpoint; "
        "Checkpoint(sys.argv[1]).save({'a': torch.ones(3000000)}, 9, rank=0, size=1)"
    )
    told = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0
    assert told.stderr.startswith(
        f"farandole [rank 0] info: the checkpoint of step 9 is in {tmp_path / 'step-00000009'}"
    )


def test_next_world_saves_after_a_world_that_died_while_saving(tmp_path: Path, lines: Lines) -> None:
    ranks = world(tmp_path, 3, lines)
    for rank in (0, 1):  # Rank 2 dies before it has saved.
        assert ranks[rank].save({"a": torch.ones(9)}, 10, rank=rank, size=3, generation=0)
    survivors = ranks[:2]
    step, deadline = 10, time.monotonic() + WAIT_SECONDS
    while True:
        assert time.monotonic() < deadline, "they still wait for rank 2"
        step += 1
        begun = [
            checkpoint.save({"a": torch.ones(9)}, step, rank=rank, size=2, generation=1)
            for rank, checkpoint in enumerate(survivors)
        ]
        if all(begun) and all([checkpoint.wait(WAIT_SECONDS) for checkpoint in survivors]):
            break
        time.sleep(0.01)
    assert survivors[0].load({"a": None}) == step
    assert json.loads((tmp_path / f"step-{step:08}" / "manifest.json").read_bytes())["content"]["world"] == 2
    # Rank 1 may have written its part of step 10 when rank 0 had already removed that; the next checkpoint removes it.
    for rank, checkpoint in enumerate(survivors):
        assert checkpoint.save({"a": torch.ones(9)}, step + 1, rank=rank, size=2, generation=1)
    assert all([checkpoint.wait(WAIT_SECONDS) for checkpoint in survivors])
    assert all(path.name.startswith("step-") for path in tmp_path.iterdir())


def test_the_state_of_an_optimizer_comes_back_as_it_was(tmp_path: Path, lines: Lines) -> None:
    """Types, containers and values, at any depth, although PyTorch's loader casts to the parameter's type."""
    (checkpoint,) = world(tmp_path, 1, lines)
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] = torch_kinds()
    assert checkpoint.save({"optimizer": optimizer, "more": plain_kinds()}, 1, rank=0, size=1)
    assert checkpoint.wait(WAIT_SECONDS)
    optimizer.state[parameter] = {}
    found: dict[str, Any] = {"optimizer": optimizer, "more": None}
    assert checkpoint.load(found) == 1
    check_same(optimizer.state[parameter], torch_kinds())
    check_same(found["more"], plain_kinds())


# --- what is wrong at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"keep": 0}, {"every_steps": 0}, {"every_seconds": 0.0}, {"patience": float("inf")}, {"format": "pickle"}],
    ids=str,
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        Checkpoint(tmp_path, **options)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "on the meta device"),
        (object(), r"deep\.0 is a builtins\.object"),
    ],
)
def test_state_that_cannot_be_saved_is_refused(tmp_path: Path, wrong: Any, words: str, lines: Lines) -> None:
    (checkpoint,) = world(tmp_path, 1, lines)
    with pytest.raises(InvalidRequestError, match=words):
        checkpoint.save({"deep": [wrong]}, 1, rank=0, size=1)
    assert checkpoint.save({"deep": [1]}, 2, rank=0, size=1) and checkpoint.wait(WAIT_SECONDS)


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(InvalidRequestError, match=r"is not installed here\. Run: pip install 'safetensors>=0\.8'"):
        Checkpoint(tmp_path)
    assert Checkpoint(tmp_path, format="dcp").load({}) is None


def test_checkpoint_is_due_after_its_steps_or_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("farandole.worker.elastic.checkpoint.checkpoint_base.time.monotonic", lambda: now[0])
    never, steps, seconds = (
        Checkpoint(tmp_path, **options) for options in ({}, {"every_steps": 10}, {"every_seconds": 60.0})
    )
    assert not never.due(10)
    assert [step for step in range(31) if steps.due(step)] == [10, 20, 30]
    assert not seconds.due(10)
    now[0] += 60
    assert seconds.due(10)


def test_settings_choose_directory_and_resume(tmp_path: Path) -> None:
    assert Checkpoint.from_settings(Settings()) is None
    settings = Settings.from_environment({"FARANDOLE_CHECKPOINT_DIR": str(tmp_path), "FARANDOLE_RESUME": "Auto"})
    checkpoint = Checkpoint.from_settings(settings, every_steps=5)
    assert checkpoint is not None and checkpoint.resume and checkpoint.directory == tmp_path and checkpoint.due(5)
    never = Checkpoint.from_settings(Settings(checkpoint_dir="here"))
    assert never is not None and not never.resume and never.directory == Path.cwd() / "here"


@pytest.mark.parametrize("run", ["my-job", "a/b", "../elsewhere", "a b", "a\n"])
def test_a_run_that_would_make_another_folder_is_refused(run: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"(?s)run=.* is not valid: it must be letters and digits"):
        Checkpoint(tmp_path, run=run)


def test_copy_is_freed_with_its_checkpoint(tmp_path: Path, lines: Lines) -> None:
    (checkpoint,) = world(tmp_path, 1, lines)
    save([checkpoint], {"weights": torch.ones(100)}, 1)
    copy = weakref.ref(next(iter(checkpoint._buffers.values())))
    del checkpoint
    gc.collect()
    assert copy() is None
