"""The common part of all estimators: DataFrames as Parquet files in a store, a training function on several workers,
and models that transform DataFrames by batches.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from farandole.base.display.wording import count
from farandole.base.installed import not_installed
from farandole.errors import InvalidRequestError
from farandole.spark import checks
from farandole.spark.backend import Backend, SparkBackend
from farandole.spark.store import Store

try:
    from pyspark.ml import Estimator, Model
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DoubleType, IntegralType, StructField, StructType

    from farandole.spark.parameters import Declared
    from farandole.spark.preparation import Rows, as_array, check_columns, check_values, written
except ModuleNotFoundError as error:
    raise not_installed("farandole.spark", error, "spark") from error

_READS = "rows are read by farandole.parquet, which needs none"
_PREPARE = "change the DataFrame before fit"
_WHOLE = "an epoch has each row once"

OF_DATA = {
    "feature_cols": (None, "the columns of the inputs, one for each input of the model"),
    "label_cols": (None, "the columns of the labels, one for each output of the model"),
}
PARAMETERS: Mapping[str, Any] = {
    **OF_DATA,
    "num_proc": (None, "the number of workers; by default Spark's default parallelism"),
    "elastic": (None, "(least, most) workers, if workers may come and go"),
    "backend": (None, "a Backend, instead of num_proc"),
    "store": (None, "the Store for data and checkpoints"),
    "model": (None, "the model to train"),
    "optimizer": (None, "the optimizer, with the learning rate for one worker; it is multiplied by their number"),
    "loss": (None, "the loss, or a list with one for each output"),
    "loss_weights": (None, "the weight of each loss; by default equal parts"),
    "metrics": ([], "functions that are averaged over each epoch"),
    "sample_weight_col": (None, "the column of the rows' weights in the loss"),
    "validation": (None, "a fraction below 1 of the rows, or a column that is true or above 0 for rows of validation"),
    "batch_size": (32, "rows of each worker in a step"),
    "val_batch_size": (None, "the same for validation"),
    "epochs": (1, "how many times all rows are used"),
    "shuffle": (True, "whether rows come in another order in each epoch"),
    "random_seed": (0, "of that order, and of the rows for validation"),
    "partitions_per_process": (10, "Parquet files for each worker"),
    "run_id": (None, "the name of the run; one whose checkpoint is in the store goes on from it"),
    "gradient_compression": (None, "the form in which gradients travel"),
    "verbose": (1, "0: the training prints nothing"),
}
UNUSED = {
    "callbacks": "write your own training function for farandole.spark.run",
    "shuffle_buffer_size": "rows are mixed within windows of row groups",
    "inmemory_cache_all": _READS,
    "train_reader_num_workers": _READS,
    "val_reader_num_workers": _READS,
    "reader_pool_type": _READS,
    "data_module": _READS,
    "train_steps_per_epoch": _WHOLE,
    "validation_steps_per_epoch": _WHOLE,
    "continuous_cols": _PREPARE,
    "categorical_cols": _PREPARE,
    "transformation_fn": _PREPARE,
    "transformation_edit_fields": _PREPARE,
    "transformation_removed_fields": _PREPARE,
    "compress_sparse_cols": "sparse vectors become arrays",
    "backward_passes_per_step": "choose a larger batch_size",
    "mp_start_method": "workers are processes of their own",
}


class BaseEstimator(Declared, Estimator):
    """An estimator that trains on several workers."""

    PARAMETERS: ClassVar[Mapping[str, Any]] = PARAMETERS
    UNUSED: ClassVar[Mapping[str, Any]] = UNUSED
    NOT_SAVED = ("backend", "store")
    CHECKS: ClassVar[Mapping[str, checks.Check]] = checks.OF_ESTIMATORS
    REQUIRED: ClassVar[tuple[str, ...]] = ("store", "model", *OF_DATA)
    RUNS: ClassVar[str] = "run"
    EACH_NEEDS_A_ROW: ClassVar[bool] = True
    """Whether a worker cannot take part in a step without rows."""
    TAKES_TEXTS: ClassVar[bool] = False
    """Whether a model's inputs may be texts."""

    def fit_on_parquet(self, params: dict[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on the Parquet files that are in the store, and return the model.

        Args:
            params: values of parameters for this training only.
            dataset_idx: the number of the data set, if the store has several.

        Raises:
            ValueError: a parameter is missing, or the data do not match the parameters.
            JobFailed: the training failed.
        """
        stage = self.copy(params) if params else self
        stage._check()
        store: Store = stage.value("store")
        val = store.get_val_data_path(dataset_idx)
        rows = Rows(store.get_train_data_path(dataset_idx), val if store.is_parquet_dataset(val) else None)
        return stage._train(rows, {})

    def _fit(self, dataset: Any) -> Any:
        self._check()
        size = self._backend().num_processes()
        # A column may be an input and a label, as of an autoencoder.
        columns = list(dict.fromkeys([*self._columns(), *filter(None, [self.value("sample_weight_col")])]))
        check_columns(dataset, columns)
        types = {field.name: field.dataType for field in dataset.schema.fields}
        for name in columns:
            check_values(name, types[name], self.TAKES_TEXTS and name in self.value("feature_cols"))
        files, seed = size * self.value("partitions_per_process"), self.value("random_seed") or 0
        with written(dataset, self.value("store"), columns, files, self.value("validation"), seed) as (_, rows):
            return self._train(rows, types)

    def _check(self) -> None:
        """Check the parameters.

        Raises:
            InvalidRequestError: one is missing or not valid.
        """
        for name in self.REQUIRED:
            if (value := self.value(name)) is None or (isinstance(value, Sequence) and not value):
                raise InvalidRequestError(f"{type(self).__name__} needs {name}=: {self.getParam(name).doc}.")
        checks.check_parameters(self, self.CHECKS)

    def _columns(self) -> list[str]:
        return [*self.value("feature_cols"), *self.value("label_cols")]

    def _backend(self) -> Backend:
        backend, size = self.value("backend"), self.value("num_proc")
        elastic = self.value("elastic") if "elastic" in self.PARAMETERS else None
        if backend is not None and (size is not None or elastic is not None):
            raise InvalidRequestError("give either backend or num_proc (with elastic): a backend knows its workers.")
        return backend or SparkBackend(size, elastic=elastic, verbose=self.value("verbose"))

    def _train(self, rows: Rows, types: dict[str, Any]) -> Any:
        """Train, and return the model.

        Args:
            rows: the locations of the data.
            types: the types of the DataFrame's columns; {} without one.
        """
        store = self.value("store")
        run = self.value("run_id") or f"{self.RUNS}_{int(time.time())}"
        backend = self._backend()
        self._check_rows(rows, backend.num_processes())
        results = backend.run(self._function(), (self._task(rows, run),), env=self._variables())
        try:
            return self._model(store.read(store.get_checkpoint_path(run)), run, results[0], types)
        finally:
            if not store.saving_runs():
                store.remove(store.get_run_path(run))

    def _check_rows(self, rows: Rows, workers: int) -> None:
        """Check that there are enough rows, and that they fit the shapes that the user has set."""
        for what, path in (("training", rows.train), ("validation", rows.val)):
            if path is None:
                continue
            try:
                found = len(self.value("store").source(path))
            except InvalidRequestError as error:
                raise InvalidRequestError(f"the rows for {what} cannot be used: {error}") from error
            if self.EACH_NEEDS_A_ROW and found < workers:
                raise InvalidRequestError(
                    f"the {what} has {count(found, 'row')}, but each of {workers} workers needs at least one: give "
                    "more rows, or a smaller num_proc."
                )
        checks.check_shapes(self, partial(self.value("store").source, rows.train))

    def _common(self, rows: Rows, run: str, trained: bytes) -> dict[str, Any]:
        """Return the fields of a `Task`."""
        return {
            "store": self.value("store"),
            "train": rows.train,
            "val": rows.val,
            "checkpoint": self.value("store").get_checkpoint_path(run),
            "feature_cols": self.value("feature_cols"),
            "label_cols": self.value("label_cols"),
            "weight_col": self.value("sample_weight_col"),
            "trained": trained,
            "batch_size": self.value("batch_size"),
            "val_batch_size": self.value("val_batch_size") or self.value("batch_size"),
            "epochs": self.value("epochs"),
            "shuffle": self.value("shuffle"),
            "seed": self.value("random_seed") or 0,
            "compression": self.value("gradient_compression"),
            "verbose": self.value("verbose"),
        }

    def _variables(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def _function(self) -> Callable[[Any], Any]:
        """Return the training function, which takes the task and returns the results that rank 0 has."""

    @abstractmethod
    def _task(self, rows: Rows, run: str) -> Any:
        """Return the argument of the training function."""

    @abstractmethod
    def _model(self, checkpoint: bytes, run: str, result: Any, types: dict[str, Any]) -> Any:
        """Return the trained stage.

        Args:
            checkpoint: the last checkpoint.
            run: the name of the run.
            result: the result of the training function on rank 0.
            types: the types of the DataFrame's columns; {} without one.
        """


# --- models ---------------------------------------------------------------------------------------------------------

OF_MODELS: Mapping[str, Any] = {
    **OF_DATA,
    "model": (None, "the trained model"),
    "history": (None, "the losses and metrics of each epoch"),
    "run_id": (None, "the name of the run in the store"),
    "output_cols": (None, "the names of the columns with outputs; by default LABEL__output"),
    "output_types": (None, "Spark's type of each output; by default double, or vector"),
    "batch_size": (256, "rows for which the model is called at once"),
}


class BaseModel(Declared, Model):
    """A trained model, which adds its outputs to DataFrames. It runs on the CPU."""

    PARAMETERS: ClassVar[Mapping[str, Any]] = OF_MODELS
    CHECKS: ClassVar[Mapping[str, checks.Check]] = checks.OF_MODELS

    def setFeatureColumns(self, columns: list[str]) -> Any:
        """Set the columns of the inputs."""
        return self.setParams(feature_cols=columns)

    def setLabelColoumns(self, columns: list[str]) -> Any:
        """Set the columns of the labels; the name is Horovod's."""
        return self.setParams(label_cols=columns)

    def getFeatureColumns(self) -> Any:
        """Return the columns of the inputs."""
        return self.value("feature_cols")

    def getLabelColumns(self) -> Any:
        """Return the columns of the labels."""
        return self.value("label_cols")

    def getOutputCols(self) -> list[str]:
        """Return the names of the columns with outputs."""
        return self.value("output_cols") or [f"{label}__output" for label in self.value("label_cols")]

    def _transform(self, dataset: Any) -> Any:
        checks.check_parameters(self, self.CHECKS)
        outputs, sizes = self.getOutputCols(), self._sizes()
        if len(outputs) != len(sizes):
            raise InvalidRequestError(
                f"the model has {count(len(sizes), 'output')}, but there are names for {len(outputs)}: {outputs}. Give "
                "one for each by setOutputCols."
            )
        check_columns(dataset, self.value("feature_cols"))
        if taken := [name for name in outputs if name in dataset.columns]:
            raise InvalidRequestError(
                f"the DataFrame has a column {taken[0]!r} already: choose others by setOutputCols."
            )
        inputs = {name: f"__farandole_input_{at}" for at, name in enumerate(self.value("feature_cols"))}
        types = [DoubleType() if size is None else ArrayType(DoubleType(), False) for size in sizes]
        added = [StructField(name, kind) for name, kind in zip(outputs, types, strict=True)]
        prepared = dataset.select(
            "*", *[as_array(dataset.schema[name]).alias(temporary) for name, temporary in inputs.items()]
        )
        predict = Prediction(self._predictor(), tuple(inputs.values()), outputs, self.value("batch_size"))
        schema = StructType([*dataset.schema.fields, *added])
        predicted = prepared.mapInArrow(predict, schema)
        return predicted.select(*dataset.columns, *[self._typed(at, name) for at, name in enumerate(outputs)])

    def _typed(self, at: int, name: str) -> Any:
        """Return an output column in the type of its label; integers are rounded."""
        column = F.col(name)
        if self._sizes()[at] is not None:
            return array_to_vector(column).alias(name)
        kind = (self.value("output_types") or {}).get(self.value("label_cols")[at], DoubleType())
        return (F.round(column) if isinstance(kind, IntegralType) else column).cast(kind).alias(name)

    @abstractmethod
    def _sizes(self) -> list[int | None]:
        """Return the number of values of each output for a row; None for a scalar."""

    @abstractmethod
    def _predictor(self) -> Callable[[], Callable[[list[Any]], list[Any]]]:
        """Return a function that loads the model in an executor, and returns a function from arrays of inputs to arrays
        of outputs.
        """


class Prediction:
    """The function for `mapInArrow`: it adds outputs to batches of rows.

    Args:
        load: a function that returns a function from arrays of inputs to arrays of outputs.
        inputs: the columns of the inputs, which are omitted from the result.
        outputs: the names of the outputs.
        size: the number of rows in one call of the model.
    """

    def __init__(
        self,
        load: Callable[[], Callable[[list[Any]], list[Any]]],
        inputs: Sequence[str],
        outputs: Sequence[str],
        size: int,
    ) -> None:
        self._load, self._inputs, self._outputs, self._size = load, inputs, outputs, size

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Add outputs to the batches of a partition, with one model."""
        import numpy as np
        import pyarrow as pa

        from farandole.parquet.columns import to_numpy

        predict = self._load()
        for batch in batches:
            columns = [to_numpy(batch.column(name), name) for name in self._inputs]
            parts = [
                predict([column[at : at + self._size] for column in columns])
                for at in range(0, batch.num_rows, self._size)
            ]
            if not parts:
                continue
            found = {name: batch.column(name) for name in batch.schema.names if name not in self._inputs}
            for at, name in enumerate(self._outputs):
                values = np.concatenate([np.asarray(part[at], np.float64).reshape(len(part[at]), -1) for part in parts])
                found[name] = pa.array(values[:, 0]) if values.shape[1] == 1 else pa.array(list(values))
            yield pa.RecordBatch.from_pydict(found)
