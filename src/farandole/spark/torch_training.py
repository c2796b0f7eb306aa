"""The training of a `TorchEstimator`, in its workers: an elastic loop over rows of Parquet files."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import farandole.torch as hvd
from farandole.spark.training import Task
from farandole.worker.elastic.world_changes import is_elastic

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Objective:
    """The losses and metrics of a training.

    Attributes:
        losses: the loss function of each output.
        weights: the weight of each loss.
        metrics: groups of functions, with one function for all outputs or one for each output in a group.
        labels: the names of the labels, from which the metrics' names are made.
        step: the user's function for a step, or None.
    """

    losses: Sequence[Callable[..., Any]]
    weights: Sequence[float]
    metrics: Sequence[Sequence[Callable[..., Any]]]
    labels: Sequence[str]
    step: Callable[..., Any] | None

    def loss(self, outputs: Tensors, labels: Tensors, weights: torch.Tensor | None) -> Any:
        """Return the weighted sum of the losses, averaged over the rows."""
        total: Any = 0.0
        for function, weight, output, label in zip(self.losses, self.weights, outputs, labels, strict=True):
            if weights is None:
                total = total + weight * function(output, label)
            else:
                each = function(output, label, reduction="none").reshape(len(weights), -1).mean(dim=1)
                total = total + weight * (each * weights).mean()
        return total

    def measure(self, outputs: Tensors, labels: Tensors) -> list[float]:
        """Return the metrics, in the order of `names`."""
        return [
            float((group[0] if len(group) == 1 else group[at])(outputs[at], labels[at]))
            for group in self.metrics
            for at in range(len(self.labels))
        ]

    def named(self, values: Sequence[float]) -> list[dict[str, float]]:
        """Return values of `measure` under their names, by group."""
        size = len(self.labels)
        return [
            {f"group_{i}_{label}": values[i * size + at] for at, label in enumerate(self.labels)}
            for i in range(len(self.metrics))
        ]


@dataclass(frozen=True)
class TorchTask(Task):
    """What a worker needs to know of the training. `trained` is the model, its optimizer, and an `Objective`."""

    begun: bytes | None
    """The checkpoint from which the training continues."""
    input_shapes: Sequence[Sequence[int]] | None
    label_shapes: Sequence[Sequence[int]] | None
    float_inputs: bool
    use_gpu: bool


def train(task: TorchTask) -> dict[str, Any]:
    """Train; rank 0 writes a checkpoint after each epoch. Return the history and the sizes of the outputs.

    Raises:
        ValueError: rows do not match the model.
    """
    hvd.init()
    training = _Training(task)
    left = task.epochs - len(training.progress.epochs)
    if left > 0:
        training.fit(left)
    return {"history": training.progress.epochs, "sizes": training.progress.sizes}


class _Progress:
    """The complete epochs, and the sums of the current one. Newcomers get them."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, Any]] = []
        self.sizes: list[int | None] = []
        self.sums: Any = 0.0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class _Training:
    """The training in one worker.

    Args:
        task: the description of the training.
    """

    def __init__(self, task: TorchTask) -> None:
        self._task = task
        self._device = hvd.local_device() if task.use_gpu else torch.device("cpu")
        self._model, optimizer, self._objective = pickle.loads(task.trained)
        self._model.to(self._device)
        self._optimizer = optimizer
        self.progress = _Progress()
        if task.begun is not None:
            state = torch.load(io.BytesIO(task.begun), map_location=self._device, weights_only=False)
            self._model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self.progress.load_state_dict(state["progress"])
        self._rates = [group["lr"] for group in optimizer.param_groups]

    def fit(self, epochs: int) -> None:
        """Train for a number of epochs."""
        loader = hvd.elastic.ElasticLoader(
            self._task.source(self._task.train, shuffle=self._task.shuffle, seed=self._task.seed),
            batch_size=self._task.batch_size,
        )
        for _ in self.progress.epochs:
            loader.next_epoch()
        optimizer = hvd.DistributedOptimizer(
            self._optimizer, self._model.named_parameters(), self._task.compression or hvd.Compression.none
        )
        # The rate is given for one worker.
        loop = hvd.elastic.steps(
            loader,
            epochs=epochs,
            rate=hvd.elastic.LinearScaling(base_world=1),
            model=self._model,
            optimizer=optimizer,
            progress=self.progress,
        )
        for number, batch in enumerate(loop):
            self._model.train()
            self.progress.sums = self.progress.sums + self._step(optimizer, batch, number)
            if loop.left_after_step == 0:
                self._end_epoch()
        loader.close()

    def _step(self, optimizer: Any, batch: dict[str, Any], number: int) -> Any:
        inputs, labels, weights = self._split(batch)
        optimizer.zero_grad()
        if self._objective.step is not None:
            reshape = self._like_outputs
            outputs, loss = self._objective.step(
                self._model, optimizer, reshape, self._objective.loss, inputs, labels, weights, 1, number
            )
            outputs, labels = reshape(outputs, labels)
        else:
            outputs, labels = self._like_outputs(self._model(*inputs), labels)
            loss = self._objective.loss(outputs, labels, weights)
            loss.backward()
            optimizer.step()
        self.progress.sizes = [None if each[0].numel() == 1 else each[0].numel() for each in outputs]
        return self._sums(loss, outputs, labels)

    def _sums(self, loss: Any, outputs: Tensors, labels: Tensors) -> Any:
        rows = len(labels[0])
        with torch.no_grad():
            return (
                torch.tensor([1.0, float(loss), *self._objective.measure(outputs, labels)], dtype=torch.float64) * rows
            )

    def _end_epoch(self) -> None:
        """Validate, and record the epoch; rank 0 writes a checkpoint."""
        progress = self.progress
        epoch = {"epoch": len(progress.epochs), "train": self._averages(progress.sums)}
        if self._task.val is not None:
            epoch["validation"] = self._averages(self._validate(self._task.val))
        progress.epochs = [*progress.epochs, epoch]
        progress.sums = 0.0
        if hvd.rank() == 0:
            if self._task.verbose:
                print(epoch)
            self._write_checkpoint()

    def _averages(self, sums: Any) -> dict[str, Any]:
        # Outside of steps, collectives do not survive lost workers: in an elastic job these are rank 0's own rows.
        sums = sums if is_elastic() else hvd.allreduce(sums, op=hvd.Sum)
        rows, loss, *metrics = sums.tolist()
        return {"loss": loss / rows, "all_metrics": self._objective.named([each / rows for each in metrics])}

    def _validate(self, path: str) -> Any:
        rank, size = (0, 1) if is_elastic() else (hvd.rank(), hvd.size())
        sums: Any = torch.zeros(2 + len(self._objective.metrics) * len(self._objective.labels), dtype=torch.float64)
        source = self._task.source(path)
        begin, end = (len(source) * each // size for each in (rank, rank + 1))
        self._model.eval()
        for at in range(begin, end, self._task.val_batch_size):
            rows = source.farandole_read(((at, min(at + self._task.val_batch_size, end)),))
            inputs, labels, weights = self._split({name: torch.as_tensor(each) for name, each in rows.items()})
            with torch.no_grad():
                outputs, labels = self._like_outputs(self._model(*inputs), labels)
                sums += self._sums(self._objective.loss(outputs, labels, weights), outputs, labels)
        return sums

    def _write_checkpoint(self) -> None:
        # The rate of one worker, as the next training expects it.
        optimizer = self._optimizer.state_dict()
        for group, rate in zip(optimizer["param_groups"], self._rates, strict=True):
            group["lr"] = rate
        file = io.BytesIO()
        state = {"model": self._model.state_dict(), "optimizer": optimizer, "progress": self.progress.state_dict()}
        torch.save(state, file)
        self._task.store.write(self._task.checkpoint, file.getvalue())

    # --- rows ------------------------------------------------------------------------------------------------------

    def _split(self, batch: dict[str, Any]) -> tuple[Tensors, Tensors, torch.Tensor | None]:
        """Return inputs, labels and weights of rows, on the device and in their shapes."""
        task = self._task
        batch = {name: each.to(self._device) for name, each in batch.items()}
        inputs = as_inputs([batch[name] for name in task.feature_cols], task.input_shapes, task.float_inputs)
        labels = list(_shaped([as_default(batch[name]) for name in task.label_cols], task.label_shapes))
        return inputs, labels, None if task.weight_col is None else as_default(batch[task.weight_col])

    def _like_outputs(self, outputs: Any, labels: Tensors) -> tuple[Tensors, Tensors]:
        """Return outputs as a list, and labels in the shapes of the outputs if their numbers of elements are equal."""
        listed = as_list(outputs)
        if self._task.label_shapes is None:
            pairs = zip(listed, labels, strict=True)
            labels = [label.reshape(out.shape) if label.numel() == out.numel() else label for out, label in pairs]
        return listed, labels


def as_list(outputs: Any) -> Tensors:
    """Return the outputs of a model as a list."""
    return list(outputs) if isinstance(outputs, list | tuple) else [outputs]


def as_inputs(columns: Tensors, shapes: Sequence[Sequence[int]] | None, as_float: bool) -> Tensors:
    """Return columns as inputs of a model: in their shapes, with floating-point numbers in PyTorch's default type.

    Args:
        columns: the columns.
        shapes: the shapes of the inputs, with -1 for the rows; None: unchanged.
        as_float: whether integers are also converted to floating-point numbers.
    """
    return list(_shaped([each.float() if as_float else as_default(each) for each in columns], shapes))


def _shaped(columns: Tensors, shapes: Sequence[Sequence[int]] | None) -> Iterator[torch.Tensor]:
    for at, column in enumerate(columns):
        yield column if shapes is None else column.reshape(*shapes[at])


def as_default(column: torch.Tensor) -> torch.Tensor:
    """Return floating-point numbers in PyTorch's default type, and others unchanged."""
    return column.to(torch.get_default_dtype()) if column.is_floating_point() else column
