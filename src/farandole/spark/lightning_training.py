"""The training of a `LightningEstimator`, in its workers: Lightning's Trainer on rows of Parquet files."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import farandole.torch as hvd
from farandole.lightning import FarandoleStrategy
from farandole.spark.torch_training import as_default, as_inputs, as_list
from farandole.spark.training import Task


@dataclass(frozen=True)
class LightningTask(Task):
    """The description of the training for a worker. `trained` is the module, its callbacks, and the logger."""

    input_shapes: Sequence[Sequence[int]] | None
    float_inputs: bool
    trainer_args: Mapping[str, Any]
    use_gpu: bool


def train(task: LightningTask) -> dict[str, Any]:
    """Train; rank 0 writes a checkpoint after each epoch. Return the history and the sizes of the outputs.

    Raises:
        ValueError: rows do not match the model.
    """
    hvd.init()
    module, callbacks, logger = pickle.loads(task.trained)
    with tempfile.TemporaryDirectory() as folder:
        for each in callbacks:
            if isinstance(each, ModelCheckpoint):
                each.dirpath = folder
        keep = Keep(task, folder)
        trainer = lightning.Trainer(
            **{
                "strategy": FarandoleStrategy(compression=task.compression or hvd.Compression.none),
                "accelerator": "auto" if task.use_gpu else "cpu",
                "max_epochs": task.epochs,
                "callbacks": [Rates(), *callbacks, keep],
                "logger": logger or False,
                "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "num_sanity_val_steps": 0,
                "use_distributed_sampler": False,
                "default_root_dir": folder,
                **task.trainer_args,
            }
        )
        batches = task.batches(task.train, task.batch_size, as_tensors, shuffle=task.shuffle, seed=task.seed)
        val = None if task.val is None else task.batches(task.val, task.val_batch_size, as_tensors)
        batches.epoch = keep.epochs
        if keep.epochs < task.epochs:
            trainer.fit(module, Epochs(batches), None if val is None else Epochs(val), ckpt_path=keep.begun)
        if hvd.rank() == 0 and (best := _best(callbacks)):
            task.store.write(best_of(task.checkpoint), best)
        return {"history": keep.history, "sizes": _sizes(task, module)}


def best_of(checkpoint: str) -> str:
    """Return the URL of the best checkpoint of the user's ModelCheckpoint."""
    return f"{checkpoint}.best"


def _best(callbacks: Sequence[Any]) -> bytes:
    paths = [each.best_model_path for each in callbacks if isinstance(each, ModelCheckpoint) and each.monitor]
    return Path(paths[0]).read_bytes() if paths and paths[0] else b""


def as_tensors(rows: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a batch: a tensor for each column, floating-point numbers in PyTorch's default type."""
    return {name: as_default(torch.as_tensor(column)) for name, column in rows.items()}


class Epochs:
    """Batches for Lightning, which iterates over them once in an epoch.

    Args:
        batches: the batches of this rank.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Rates(lightning.Callback):
    """Multiplies learning rates, which are given for one worker, by the number of workers.

    These are all rates of the optimizers and of PyTorch's schedules, including the highest and lowest ones of a
    schedule. Checkpoints have the rates for one worker, so a training may continue with another number of workers.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Multiply the rates, which may come from a checkpoint."""
        size = hvd.size()
        _scale_groups([each.param_groups for each in trainer.optimizers], size)
        for each in trainer.lr_scheduler_configs:
            _scale_schedule(vars(each.scheduler), size)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the rates for one worker."""
        size = hvd.size()
        for name in ("optimizer_states", "lr_schedulers"):
            checkpoint[name] = copy.deepcopy(checkpoint[name])
        _scale_groups([each["param_groups"] for each in checkpoint["optimizer_states"]], 1 / size)
        for state in checkpoint["lr_schedulers"]:
            _scale_schedule(state, 1 / size)


# Where PyTorch's optimizers and schedules keep rates.
_OF_GROUPS = {"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"}
_OF_SCHEDULES = {"base_lrs", "max_lrs", "min_lrs", "eta_min", "_last_lr"}


def _scale_groups(optimizers: Sequence[Sequence[dict[str, Any]]], factor: float) -> None:
    for groups in optimizers:
        for group in groups:
            _scale(group, _OF_GROUPS, factor)


def _scale_schedule(state: dict[str, Any], factor: float) -> None:
    """Multiply the rates among a schedule's attributes, or in its `state_dict`, and those of the schedules in it."""
    _scale(state, _OF_SCHEDULES, factor)
    for each in state.get("_schedulers", ()):
        _scale_schedule(each if isinstance(each, dict) else vars(each), factor)


def _scale(state: dict[str, Any], names: set[str], factor: float) -> None:
    for name in names & set(state):
        rates = state[name]
        state[name] = [rate * factor for rate in rates] if isinstance(rates, list) else rates * factor


class Keep(lightning.Callback):
    """Records each epoch, and writes a checkpoint on rank 0 after it.

    Attributes:
        history: the values of each logged metric, one for each epoch.
        epochs: the number of epochs in the checkpoint from which the training continues.
        begun: the path of this checkpoint on this machine; None: there is none.

    Args:
        task: the description of the training.
        folder: a folder for files.
    """

    def __init__(self, task: LightningTask, folder: str) -> None:
        self._task = task
        self._path = os.path.join(folder, "farandole.ckpt")
        self.history: dict[str, list[float]] = {}
        self.epochs = 0
        self.begun: str | None = None
        if task.store.exists(task.checkpoint):
            self.begun = os.path.join(folder, "begun.ckpt")
            Path(self.begun).write_bytes(task.store.read(task.checkpoint))
            state = torch.load(self.begun, map_location="cpu", weights_only=False)[type(self).__name__]
            self.epochs, self.history = state["epochs"], state["history"]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Record the epoch, and write a checkpoint."""
        for name, value in trainer.callback_metrics.items():
            self.history.setdefault(name, []).append(float(value))
        self.epochs = trainer.current_epoch + 1
        trainer.save_checkpoint(self._path)
        if hvd.rank() == 0:
            self._task.store.write(self._task.checkpoint, Path(self._path).read_bytes())
            if self._task.verbose:
                print({name: values[-1] for name, values in self.history.items()})

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the history into a checkpoint as well."""
        checkpoint[type(self).__name__] = {"epochs": self.epochs, "history": self.history}


def _sizes(task: LightningTask, module: Any) -> list[int | None]:
    """Return the number of values of each output for a row; None for a scalar."""
    rows = as_tensors(task.source(task.train).farandole_read(((0, 1),)))
    inputs = as_inputs([rows[name] for name in task.feature_cols], task.input_shapes, task.float_inputs)
    module = module.cpu().eval()
    with torch.no_grad(), contextlib.suppress(NotImplementedError):
        return [None if each.numel() == 1 else each.numel() for each in as_list(module(*inputs))]
    return []  # A module without `forward` cannot transform.
