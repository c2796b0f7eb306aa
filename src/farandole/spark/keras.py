"""`KerasEstimator`: models of Keras 3 as stages of `pyspark.ml`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar

from farandole.base.installed import not_installed

try:
    import cloudpickle  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise not_installed("farandole.spark.keras", error, "spark,keras") from error

from farandole.base.display.wording import count
from farandole.control.launcher.arguments import read_variables
from farandole.errors import InvalidRequestError
from farandole.spark import checks
from farandole.spark.estimator import OF_MODELS, PARAMETERS, UNUSED, BaseEstimator, BaseModel
from farandole.spark.keras_training import KerasTask, load, train
from farandole.spark.preparation import Rows

__all__ = ["KerasEstimator", "KerasModel"]

_OBJECTS: Mapping[str, Any] = {"custom_objects": ({}, "classes and functions that Keras does not have, by their names")}

# Metrics whose names have a meaning only in `compile`.
_OF_COMPILE = ("accuracy", "acc", "crossentropy", "ce")


def _is(kind: str) -> Callable[[Any], bool]:
    """Return a function that returns whether a value is of a class of Keras, which is imported when it is called."""

    def fits(value: Any) -> bool:
        import keras

        return isinstance(value, attrgetter(kind)(keras))

    return fits


def _are_known(module: str) -> Callable[[Any], bool]:
    """Return a function that returns whether `compile` can use a value, by a module of Keras, losses or metrics."""

    def fits(value: Any) -> bool:
        import keras

        try:
            for each in keras.tree.flatten(value):
                if each not in _OF_COMPILE:
                    getattr(keras, module).get(each)
        except (TypeError, ValueError):
            return False
        return True

    return fits


class KerasEstimator(BaseEstimator):
    """Trains a model of Keras 3 on the rows of a DataFrame, on several workers.

    Each row is used once in an epoch; with batches of one row, a last step with fewer rows than workers is omitted.
    Rank 0 writes a checkpoint into the store after each epoch, and a training with an existing `run_id` continues from
    it.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.

    Raises:
        TypeError: there is no such parameter.

    Example:
        >>> estimator = KerasEstimator(  # doctest: +SKIP
        ...     num_proc=2, store=Store.create("/shared/store"), model=model, optimizer=keras.optimizers.SGD(0.1),
        ...     loss="mse", feature_cols=["x"], label_cols=["y"], epochs=10)
        >>> estimator.fit(frame).transform(frame).show()  # doctest: +SKIP
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **{name: declared for name, declared in PARAMETERS.items() if name != "elastic"},
        **_OBJECTS,
        "callbacks": ([], "callbacks of all workers"),
        "backend_env": ({}, "variables for the workers"),
    }
    UNUSED: ClassVar[Mapping[str, Any]] = {
        **{name: why for name, why in UNUSED.items() if name != "callbacks"},
        "elastic": "the number of Keras' workers stays",
        "checkpoint_callback": "a checkpoint is written after each epoch",
        "label_shapes": "columns have their shapes",
        "use_gpu": "Keras' backend decides",
        "tensorflow_dataset_prefetch_buffer_size": "rows are read by farandole.parquet",
    }
    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        **checks.OF_ESTIMATORS,
        "model": (_is("Model"), "a model of Keras 3, such as keras.Sequential(...)"),
        "optimizer": (_is("optimizers.Optimizer"), "an optimizer of Keras 3, such as keras.optimizers.SGD(0.1)"),
        "loss": (_are_known("losses"), "a loss of Keras, nor a list or dict of losses"),
        "metrics": (_are_known("metrics"), "a list or dict of metrics of Keras"),
        "callbacks": (checks.list_of(_is("callbacks.Callback")), "a list of callbacks of Keras"),
        "custom_objects": checks.MAPPING,
    }
    REQUIRED = (*BaseEstimator.REQUIRED, "loss")
    RUNS = "keras"
    TAKES_TEXTS = True

    def _function(self) -> Callable[[Any], Any]:
        return train

    def _variables(self) -> dict[str, str]:
        return {"KERAS_BACKEND": _backend_of_keras(), **read_variables("backend_env", self.value("backend_env"))}

    def _check(self) -> None:
        super()._check()
        if self.value("optimizer") is None and getattr(self.value("model"), "optimizer", None) is None:
            raise InvalidRequestError("KerasEstimator needs optimizer=, or a model that has been compiled.")
        # Other models than Functional and Sequential ones do not know their inputs.
        inputs, columns = getattr(self.value("model"), "inputs", None), self.value("feature_cols")
        if inputs and len(inputs) != len(columns):
            raise InvalidRequestError(
                f"the model has {count(len(inputs), 'input')}, but feature_cols has {count(len(columns), 'name')}: "
                "give a column for each input."
            )
        self._variables()

    def _task(self, rows: Rows, run: str) -> KerasTask:
        compiled = {name: self.value(name) for name in ("loss", "loss_weights")}
        compiled["weighted_metrics" if self.value("sample_weight_col") else "metrics"] = self.value("metrics")
        trained = self.value("model"), self.value("optimizer"), compiled, self.value("callbacks")
        return KerasTask(
            **self._common(rows, run, cloudpickle.dumps(trained)), custom_objects=self.value("custom_objects")
        )

    def _model(self, checkpoint: bytes, run: str, result: Any, types: dict[str, Any]) -> KerasModel:
        return KerasModel(
            model=load(checkpoint, self.value("custom_objects")),
            history=result["history"],
            output_types=types,
            run_id=run,
            **{name: self.value(name) for name in ("feature_cols", "label_cols", "custom_objects")},
        )


class KerasModel(BaseModel):
    """A trained Keras model, which adds a column for each output to DataFrames.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {**OF_MODELS, **_OBJECTS}

    def _sizes(self) -> list[int | None]:
        shapes = self.value("model").output_shape
        shapes = shapes if isinstance(shapes, list) else [shapes]
        return [None if math.prod(shape[1:]) == 1 else math.prod(shape[1:]) for shape in shapes]

    def _predictor(self) -> Callable[[], Callable[[list[Any]], list[Any]]]:
        pickled, backend = cloudpickle.dumps(self.value("model")), _backend_of_keras()

        def load_model() -> Callable[[list[Any]], list[Any]]:
            os.environ["KERAS_BACKEND"] = backend
            import keras

            model = cloudpickle.loads(pickled)

            def predict(columns: list[Any]) -> list[Any]:
                outputs = model(columns if len(columns) > 1 else columns[0], training=False)
                return [
                    keras.ops.convert_to_numpy(each) for each in (outputs if isinstance(outputs, list) else [outputs])
                ]

            return predict

        return load_model


def _backend_of_keras() -> str:
    import keras

    return str(keras.backend.backend())
