"""`horovod.spark.common.util`: preparing data once for several trainings, with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from farandole.spark import preparation
from farandole.spark.store import Store

__all__ = ["clear_training_cache", "prepare_data"]


def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None = None,
    validation: Any = None,
    sample_weight_col: str | None = None,
    compress_sparse: bool = False,
    partitions_per_process: int = 10,
    verbose: int = 0,
) -> AbstractContextManager[int]:
    """Write a DataFrame once for several trainings, like `farandole.spark.preparation.prepare_data`.

    Args:
        num_processes: the number of workers.
        store: the store of the estimators.
        df: the DataFrame.
        label_columns: the columns of the labels.
        feature_columns: the columns of the inputs; None: all others.
        validation: a fraction of the rows, or a column.
        sample_weight_col: the column of the rows' weights.
        compress_sparse: ignored; sparse vectors become arrays.
        partitions_per_process: the number of Parquet files for each worker.
        verbose: ignored; nothing is printed.

    Raises:
        ValueError: there are no labels or no such column, or a number is not valid.
    """
    return preparation.prepare_data(
        num_processes, store, df, label_columns, feature_columns, validation, sample_weight_col, partitions_per_process
    )


def clear_training_cache() -> None:
    """Do nothing: the files are removed when `prepare_data` ends."""
