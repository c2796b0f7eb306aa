"""The training of a `KerasEstimator`, in its workers: `fit` on rows of Parquet files."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.spark.training import Task


@dataclass(frozen=True)
class KerasTask(Task):
    """What a worker needs to know of the training. `trained` is the model, its optimizer, arguments of `compile`, and
    callbacks.
    """

    custom_objects: Mapping[str, Any]


def train(task: KerasTask) -> dict[str, Any]:
    """Train; rank 0 writes a checkpoint after each epoch. Return the history.

    Raises:
        ValueError: rows do not match the model.
    """
    import farandole.keras as hvd

    hvd.init()
    model, optimizer, compiled, callbacks = pickle.loads(task.trained)
    optimizer = optimizer or model.optimizer
    rate = float(optimizer.learning_rate) if _has_number(optimizer) else None
    done, history = _begun(task)
    if done:
        with _file(task.store.read(task.checkpoint)) as name:
            model = hvd.load_model(name, custom_objects=dict(task.custom_objects), compression=task.compression)
    else:
        model.compile(optimizer=hvd.DistributedOptimizer(optimizer, compression=task.compression), **compiled)
    if rate is not None:
        # It is given for one worker.
        model.optimizer.learning_rate = rate * hvd.size()
    keep = _keep(task, history)
    batches = _batches(task, task.train, task.batch_size, shuffle=task.shuffle, seed=task.seed)
    batches.epoch = done
    val = None if task.val is None else _batches(task, task.val, task.val_batch_size)
    if done < task.epochs:
        model.fit(
            batches.forever(),
            steps_per_epoch=len(batches),
            epochs=task.epochs,
            initial_epoch=done,
            shuffle=False,
            validation_data=None if val is None else val.forever(),
            validation_steps=None if val is None else len(val),
            callbacks=[hvd.callbacks.Distributed(*([keep] if hvd.rank() == 0 else [])), *callbacks],
            verbose=task.verbose if hvd.rank() == 0 else 0,
        )
    return {"history": history}


def _has_number(optimizer: Any) -> bool:
    """Return whether the learning rate is a number, rather than a schedule."""
    import keras

    return not isinstance(getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule)


def _begun(task: KerasTask) -> tuple[int, dict[str, list[float]]]:
    """Return the number of epochs in the checkpoint, and their history."""
    notes = notes_of(task.checkpoint)
    if not task.store.exists(notes):
        return 0, {}
    history = json.loads(task.store.read(notes))
    return max(map(len, history.values()), default=0), history


def notes_of(checkpoint: str) -> str:
    """Return the URL of the file with the history of a checkpoint."""
    return f"{checkpoint}.json"


def _keep(task: KerasTask, history: dict[str, list[float]]) -> Any:
    """Return the callback that writes a checkpoint after each epoch, and records the epoch."""
    import keras

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
            for name, value in (logs or {}).items():
                history.setdefault(name, []).append(float(value))
            with tempfile.TemporaryDirectory() as folder:
                name = os.path.join(folder, "model.keras")
                self.model.save(name)
                task.store.write(task.checkpoint, Path(name).read_bytes())
            task.store.write_text(notes_of(task.checkpoint), json.dumps(history))

    return Keep()


class _file:
    """A temporary file with this content, whose name has the suffix that Keras requires."""

    def __init__(self, content: bytes) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._name = os.path.join(self._folder.name, "model.keras")
        Path(self._name).write_bytes(content)

    def __enter__(self) -> str:
        return self._name

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def load(content: bytes, custom_objects: Mapping[str, Any]) -> Any:
    """Return the model of a checkpoint, without its optimizer."""
    import keras

    with _file(content) as name:
        return keras.models.load_model(name, custom_objects=dict(custom_objects), compile=False)


def _batches(task: KerasTask, path: str, size: int, **options: Any) -> Any:
    """Return this rank's batches: inputs, labels and weights."""

    def collate(rows: Mapping[str, Any]) -> tuple[Any, ...]:
        inputs, labels = (
            tuple(rows[name] for name in names) if len(names) > 1 else rows[names[0]]
            for names in (task.feature_cols, task.label_cols)
        )
        return (inputs, labels) if task.weight_col is None else (inputs, labels, rows[task.weight_col])

    return task.batches(path, size, collate, **options)
