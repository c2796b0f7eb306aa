"""Checks of the parameters of estimators and models, in the driver: before rows are written and workers are started."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from farandole.base.display.wording import count
from farandole.errors import InvalidRequestError
from farandole.spark.store import Store, is_name
from farandole.worker.collectives.compression import is_compression


class Stage(Protocol):
    """The part of `farandole.spark.parameters.Declared` that is used here, which needs no PySpark."""

    PARAMETERS: ClassVar[Mapping[str, tuple[Any, str]]]

    def value(self, name: str) -> Any:
        """Return the value of a parameter."""


Check = tuple[Callable[[Any], bool], str]
"""Whether a value is valid, and what valid values are, for the message."""


def at_least(least: float) -> Callable[[Any], bool]:
    """Return a function that returns whether a value is an integer, `least` or more."""

    def fits(value: Any) -> bool:
        try:
            return operator.index(value) >= least
        except TypeError:
            return False

    return fits


def list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a function that returns whether a value is a list of valid values."""
    return lambda value: isinstance(value, list | tuple) and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_shape(value: Any) -> bool:
    return list_of(at_least(-1))(value) and len(value) > 0 and value[0] == -1 and all(size > 0 for size in value[1:])


def _is_backend(value: Any) -> bool:
    return callable(getattr(value, "run", None)) and callable(getattr(value, "num_processes", None))


COLUMNS: Check = (list_of(_is_text), 'a list of columns, such as ["x"]')
FLAG: Check = (lambda value: value in (True, False), "True or False")
FUNCTION: Check = (callable, "a function")
MAPPING: Check = (lambda value: isinstance(value, Mapping), "a dict")
SHAPES: Check = (
    list_of(_is_shape),
    "a list of shapes, one for each column: give -1 for the rows and then the shape of a row, such as [[-1, 2]]",
)
OF_DATA: Mapping[str, Check] = {"feature_cols": COLUMNS, "label_cols": COLUMNS}
OF_ESTIMATORS: Mapping[str, Check] = {
    **OF_DATA,
    "backend": (_is_backend, "a Backend, such as SparkBackend(2)"),
    "store": (lambda value: isinstance(value, Store), "a Store, such as Store.create('/shared/store')"),
    "sample_weight_col": (_is_text, "the name of a column"),
    "batch_size": (at_least(1), "a number of rows: give an integer, 1 or more"),
    "val_batch_size": (at_least(1), "a number of rows: give an integer, 1 or more"),
    "epochs": (at_least(1), "a number of epochs: give an integer, 1 or more"),
    "shuffle": FLAG,
    "random_seed": (at_least(-math.inf), "an integer"),
    "partitions_per_process": (at_least(1), "a number of files: give an integer, 1 or more"),
    "run_id": (is_name, "a name: give text without /, *, ? or ["),
    "gradient_compression": (is_compression, "one of hvd.Compression, such as hvd.Compression.fp16"),
    "verbose": (at_least(0), "0, 1 or 2"),
}
OF_MODELS: Mapping[str, Check] = {
    **OF_DATA,
    "output_cols": COLUMNS,
    "output_types": MAPPING,
    "batch_size": (at_least(1), "a number of rows: give an integer, 1 or more"),
}
_COLUMNS_OF_SHAPES = {"input_shapes": "feature_cols", "label_shapes": "label_cols"}


def check_parameters(stage: Stage, checks: Mapping[str, Check]) -> None:
    """Check the parameters that the user has set.

    Args:
        stage: the estimator or the model.
        checks: the checks, by the names of parameters.

    Raises:
        InvalidRequestError: a value is not valid.
    """
    for name, (fits, expected) in checks.items():
        if (value := stage.value(name)) is not stage.PARAMETERS[name][0] and not fits(value):
            raise InvalidRequestError(f"{name}={value!r:.80} is not {expected}.")
    _shaped_columns(stage)


def _shaped_columns(stage: Stage) -> list[tuple[str, str, list[int]]]:
    """Return the columns that have a shape, each with the name of the parameter and the shape.

    Raises:
        InvalidRequestError: there are more or fewer shapes than columns.
    """
    found = []
    for name, columns in _COLUMNS_OF_SHAPES.items():
        shapes = stage.value(name) if name in stage.PARAMETERS else None
        if shapes is None:
            continue
        names = stage.value(columns)
        if len(shapes) != len(names):
            raise InvalidRequestError(
                f"{name} has {count(len(shapes), 'shape')}, but {columns} has {count(len(names), 'name')}: give a "
                "shape for each column."
            )
        found += [(name, column, list(shape)) for column, shape in zip(names, shapes, strict=True)]
    return found


def check_shapes(stage: Stage, source_of: Callable[..., Any]) -> None:
    """Check that the shapes that the user has set fit the data, of which the first row is read.

    Args:
        stage: the estimator.
        source_of: returns a `ParquetSource` of the data, given columns=.

    Raises:
        InvalidRequestError: the rows of a column have more or fewer numbers than its shape.
    """
    if not (shaped := _shaped_columns(stage)):
        return
    first = source_of(columns=list(dict.fromkeys(column for _, column, _ in shaped))).farandole_read(((0, 1),))
    for name, column, shape in shaped:
        there, wanted = first[column].size, math.prod(shape[1:])
        if there != wanted:
            raise InvalidRequestError(
                f"{name} has {shape} for the column {column!r}, which is {count(wanted, 'number')} for each row, but "
                f"its rows have {there}."
            )
