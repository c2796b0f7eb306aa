"""The description of a training for the workers of all estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farandole.spark.store import Store


@dataclass(frozen=True)
class Task:
    """The part of a training's description that does not depend on the framework."""

    store: Store
    train: str
    val: str | None
    checkpoint: str
    """The URL that the checkpoints are written to."""
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    weight_col: str | None
    trained: bytes
    """The pickled model, and the framework's objects for its training."""
    batch_size: int
    val_batch_size: int
    epochs: int
    shuffle: bool
    seed: int
    compression: Any
    verbose: int

    def source(self, path: str, **options: Any) -> Any:
        """Return a `ParquetSource` of the columns of the training, at a URL."""
        columns = dict.fromkeys([*self.feature_cols, *self.label_cols, *filter(None, [self.weight_col])])
        return self.store.source(path, columns=list(columns), **options)

    def batches(self, path: str, size: int, collate: Any = None, **options: Any) -> Any:
        """Return the batches of this rank, in a job with a fixed number of workers.

        Args:
            path: the URL of the rows.
            size: the number of rows of each worker in a step.
            collate: a function that makes a batch of the columns.
            options: other arguments of the source.
        """
        from farandole.parquet import Batches
        from farandole.worker.core.basics import session_if_any

        source, session = self.source(path, **options), session_if_any()
        workers = 1 if session is None else session.world.size
        # Workers with one row each cannot share the rows of a last step that has fewer of them than there are workers.
        return Batches(source, batch_size=size, collate=collate, drop_last=size == 1 and len(source) % workers > 0)
