"""DataFrames as Parquet files in a store, for training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.base.installed import not_installed
from farandole.control.launcher.arguments import read_count
from farandole.errors import InvalidRequestError
from farandole.spark.store import Store

try:
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DecimalType, NumericType, StringType
except ModuleNotFoundError as error:
    raise not_installed("farandole.spark", error, "spark") from error


@dataclass(frozen=True)
class Rows:
    """The locations of a training's data."""

    train: str
    """The URL of the training data, in the store."""
    val: str | None


@contextlib.contextmanager
def written(
    dataset: Any, store: Store, columns: Sequence[str], files: int, validation: Any = None, seed: int = 0
) -> Iterator[tuple[int, Rows]]:
    """Write columns of a DataFrame into a store, with vectors as arrays, and remove them afterwards.

    Args:
        dataset: the DataFrame.
        store: the store.
        columns: the names of the columns.
        files: the number of files for each part.
        validation: a fraction of the rows, or a column; see `BaseEstimator`.
        seed: the seed of the choice of rows for validation.

    Returns:
        The number of the data set in the store, and the locations of the rows.

    Raises:
        ValueError: there is no such column, or the fraction is not valid.
    """
    check_columns(dataset, columns)
    index = time.time_ns()
    rows = Rows(store.get_train_data_path(index), store.get_val_data_path(index) if validation else None)
    paths = [path for path in (rows.train, rows.val) if path is not None]
    try:
        for part, path in zip(_parts(dataset, validation, seed), paths, strict=True):
            part.select([as_array(dataset.schema[name]) for name in columns]).repartition(files).write.parquet(path)
        yield index, rows
    finally:
        for path in paths:
            store.remove(path)


def check_columns(dataset: Any, columns: Sequence[str]) -> None:
    """Check that a DataFrame has these columns.

    Raises:
        InvalidRequestError: it lacks one, or is not a DataFrame of Spark.
    """
    if not hasattr(dataset, "schema"):
        raise InvalidRequestError(
            f"a {type(dataset).__name__} is not a DataFrame of Spark: give one, such as spark.createDataFrame(rows)."
        )
    if missing := [name for name in columns if name not in dataset.columns]:
        raise InvalidRequestError(f"the DataFrame has no column {missing[0]!r}: it has {', '.join(dataset.columns)}.")


def _parts(dataset: Any, validation: Any, seed: int) -> list[Any]:
    """Return the rows of the training and, if there are any, those of the validation."""
    if not validation:
        return [dataset]
    if isinstance(validation, str):
        if validation not in dataset.columns:
            raise InvalidRequestError(f"validation={validation!r} is not a column of the DataFrame.")
        is_flag = isinstance(dataset.schema[validation].dataType, BooleanType)
        chosen = F.col(validation) if is_flag else F.col(validation) > 0
        chosen = F.coalesce(chosen, F.lit(False))
        return [dataset.filter(~chosen), dataset.filter(chosen)]
    if not isinstance(validation, int | float) or not 0 < validation < 1:
        raise InvalidRequestError(f"validation={validation} is not a fraction below 1, nor a column.")
    return list(dataset.randomSplit([1.0 - validation, validation], seed=seed))


def check_values(name: str, kind: Any, may_be_text: bool = False) -> None:
    """Check that a model can take the values of a column.

    Args:
        name: the name of the column.
        kind: Spark's type of its values.
        may_be_text: whether texts and bytes are valid too.

    Raises:
        ValueError: the values are not numbers.
    """
    of_one = kind
    while isinstance(of_one, ArrayType):
        of_one = of_one.elementType
    valid = (NumericType, BooleanType, VectorUDT, *((StringType, BinaryType) if may_be_text else ()))
    if not isinstance(of_one, valid) or isinstance(of_one, DecimalType):
        raise InvalidRequestError(
            f"the column {name!r} has values of type {kind.simpleString()}, which are not numbers: convert them before "
            "fit, such as by cast('double') or StringIndexer."
        )


def as_array(field: Any) -> Any:
    """Return a column of a DataFrame, as an array if it has vectors."""
    column = F.col(field.name)
    return vector_to_array(column, "float32").alias(field.name) if isinstance(field.dataType, VectorUDT) else column


@contextlib.contextmanager
def prepare_data(
    num_processes: int,
    store: Store,
    df: Any,
    label_columns: Sequence[str],
    feature_columns: Sequence[str] | None = None,
    validation: Any = None,
    sample_weight_col: str | None = None,
    partitions_per_process: int = 10,
) -> Iterator[int]:
    """Write a DataFrame once for several trainings by `fit_on_parquet(dataset_idx=)`; afterwards, remove the files.

    Args:
        num_processes: the number of workers.
        store: the store of the estimators.
        df: the DataFrame.
        label_columns: the columns of the labels.
        feature_columns: the columns of the inputs; None: all others.
        validation: a fraction of the rows, or a column that is true or above 0 for rows of validation.
        sample_weight_col: the column of the rows' weights.
        partitions_per_process: the number of Parquet files for each worker.

    Returns:
        The number of the data set.

    Raises:
        ValueError: there are no labels or no such column, or a number is not valid.

    Example:
        >>> with prepare_data(2, store, frame, label_columns=["y"]) as index:  # doctest: +SKIP
        ...     models = [each.fit_on_parquet(dataset_idx=index) for each in estimators]
    """
    if not label_columns:
        raise InvalidRequestError("label_columns= is empty: name the columns of the labels.")
    for name, given in (("label_columns", label_columns), ("feature_columns", feature_columns)):
        if given is not None and not isinstance(given, list | tuple):
            raise InvalidRequestError(f"{name}={given!r:.80} is not a list of columns, such as ['x'].")
    if not isinstance(store, Store):
        raise InvalidRequestError(f"store={store!r:.80} is not a Store, such as Store.create('/shared/store').")
    read_count("num_processes", num_processes)
    read_count("partitions_per_process", partitions_per_process, "files")
    check_columns(df, label_columns)
    others = {*label_columns, sample_weight_col, validation if isinstance(validation, str) else None}
    features = feature_columns or [name for name in df.columns if name not in others]
    columns = [*dict.fromkeys([*features, *label_columns, *filter(None, [sample_weight_col])])]
    with written(df, store, columns, num_processes * partitions_per_process, validation) as (index, _):
        yield index
