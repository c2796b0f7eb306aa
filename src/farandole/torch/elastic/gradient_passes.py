"""Several backward passes over parts of a batch that form one step, and the squared norms of its gradients.

The gradient of a step is the mean over its samples. PyTorch sums the mean gradients of the passes, whose sizes may
differ by a sample; so the sum is rescaled between two passes and after the last one, each gradient just after a
backward pass has finished it, when it is still in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.gradient_entry import GradientEntry
from farandole.torch.optimizer import is_distributed
from farandole.worker.core.dtype import Average
from farandole.worker.gradients.entry import Entry


class TorchPasses:
    """Implements `worker.elastic.batch_adaptation.GradientPasses` and `worker.gradients.reducer.GradientObserver`.

    Attributes:
        is_partial: whether another pass of the step follows.
        holds: whether there are gradients of a pass to which others will be added.
    """

    can_split = True

    def __init__(self, optimizers: Sequence[Any]) -> None:
        """Observe the gradients of optimizers.

        Raises:
            InvalidRequestError: an optimizer's gradients are not averaged over all workers.
        """
        self.is_partial = False
        self.holds = False
        self._sizes: Sequence[int] = (0,)
        self._number = 0
        self._measures = False
        # Appended to by any thread.
        self._first: list[torch.Tensor] = []
        self._own: list[torch.Tensor] = []
        self._reduced: list[torch.Tensor] | None = None
        for optimizer in optimizers:
            _check(optimizer)
            optimizer.passes = self
            optimizer._reducer.observer = self
        self._optimizers = optimizers
        if any(optimizer.backward_passes_per_step > 1 for optimizer in optimizers):
            raise InvalidRequestError(
                "AdaptiveBatch itself splits a batch that is larger than most_in_pass: leave "
                "backward_passes_per_step of DistributedOptimizer at 1."
            )

    # --- calls of the loop -----------------------------------------------------------------------------------------

    def split(self, data: Any, sizes: Sequence[int]) -> Sequence[Any]:
        return split(data, sizes)

    def begin(self, number: int, sizes: Sequence[int], *, measures: bool) -> None:
        if number == 0:
            if len(sizes) != len(self._sizes):
                for optimizer in self._optimizers:
                    optimizer._reducer.set_passes(len(sizes))
            self._first, self._own, self._reduced = [], [], None
            self.holds = False
        self._number, self._sizes, self._measures = number, sizes, measures
        self.is_partial = number + 1 < len(sizes)

    def squares(self) -> tuple[float, float, float]:
        own = _sum(self._own)
        # Without other ranks, nothing is reduced.
        return _sum(self._first), own, own if self._reduced is None else _sum(self._reduced)

    # --- calls of the gradients' reducer ---------------------------------------------------------------------------

    def computed(self, entry: Entry) -> None:
        passes = len(self._sizes)
        if passes == 1 and not self._measures:
            return
        assert isinstance(entry, GradientEntry)
        gradient = entry.parameter.grad
        if gradient is None:
            return
        self.holds = passes > 1
        gradient = gradient.detach()
        if self._measures and passes > 1 and self._number == 0:
            self._first.append(square(gradient))
        if passes > 1:
            sizes, number = self._sizes, self._number
            other = sizes[number + 1] if self.is_partial else sum(sizes)
            if sizes[number] != other:
                gradient.mul_(sizes[number] / other)
        if self._measures and not self.is_partial:
            self._own.append(square(gradient))

    def reduced(self, entries: Iterable[Entry]) -> None:
        if not self._measures:
            return
        gradients = [entry.parameter.grad for entry in entries if isinstance(entry, GradientEntry)]
        squares = [square(gradient.detach()) for gradient in gradients if gradient is not None]
        self._reduced = squares if self._reduced is None else self._reduced + squares

    def stepped(self) -> None:
        """Record that the optimizer has taken its step."""
        self.holds = False


def square(gradient: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a gradient."""
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    flat = values.reshape(-1)
    return torch.dot(flat, flat)


def split(data: Any, sizes: Sequence[int]) -> list[Any]:
    """Split a collated batch into parts of these numbers of samples.

    Raises:
        InvalidRequestError: the batch contains an object that cannot be split.

    Example:
        >>> split((torch.arange(3), ["a", "b", "c"]), [2, 1])
        [(tensor([0, 1]), ['a', 'b']), (tensor([2]), ['c'])]
    """
    samples = sum(sizes)
    if isinstance(data, torch.Tensor) and data.ndim and len(data) == samples:
        return list(data.split(list(sizes)))
    if isinstance(data, Mapping):
        columns = {name: split(value, sizes) for name, value in data.items()}
        return [{name: column[number] for name, column in columns.items()} for number in range(len(sizes))]
    if isinstance(data, list) and len(data) == samples and not isinstance(data[0], torch.Tensor):
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if isinstance(data, (tuple, list)):
        parts = [split(value, sizes) for value in data]
        rows = [[part[number] for part in parts] for number in range(len(sizes))]
        make = getattr(type(data), "_make", type(data))  # a namedtuple's also accepts a list
        return [make(row) for row in rows]
    raise InvalidRequestError(
        f"AdaptiveBatch cannot split a batch of {samples} samples into passes: it contains an object of type "
        f"{type(data).__name__}. Let the loader's collate_fn return tensors whose first dimension is the samples, or "
        "tuples, lists and dicts of them; or omit most_in_pass."
    )


def _check(optimizer: Any) -> None:
    if not is_distributed(optimizer) or getattr(optimizer, "_op", None) != Average or optimizer._reducer is None:
        raise InvalidRequestError(
            f"AdaptiveBatch needs the average of all workers' gradients, but this is a {type(optimizer).__name__}: "
            "pass hvd.DistributedOptimizer(...) for all workers, with op=hvd.Average, which is the default."
        )


def _sum(squares: Sequence[torch.Tensor]) -> float:
    return float(torch.stack([each.double() for each in squares]).sum()) if squares else 0.0
