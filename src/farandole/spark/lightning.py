"""`LightningEstimator`: Lightning modules as stages of `pyspark.ml`."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from farandole.base.installed import not_installed

try:
    import cloudpickle  # type: ignore[import-untyped]
    import lightning
    import torch
    from lightning.pytorch.loggers import Logger
except ModuleNotFoundError as error:
    raise not_installed("farandole.spark.lightning", error, "spark,lightning") from error

from farandole.spark import checks
from farandole.spark.estimator import PARAMETERS, UNUSED, BaseEstimator
from farandole.spark.lightning_training import LightningTask, best_of, train
from farandole.spark.preparation import Rows
from farandole.spark.torch import CHECKS_OF_SHAPES, SHAPES, TorchModel

__all__ = ["LightningEstimator", "LightningModel"]

# What a module decides by itself.
_OF_THE_MODULE = ("optimizer", "loss", "loss_constructors", "loss_weights", "metrics")


def _are_of_trainer(given: Any) -> bool:
    return isinstance(given, Mapping) and given.keys() <= inspect.signature(lightning.Trainer).parameters.keys()


def _is_logger(given: Any) -> bool:
    return isinstance(given, bool | Logger) or checks.list_of(lambda each: isinstance(each, Logger))(given)


class LightningEstimator(BaseEstimator):
    """Trains a LightningModule on the rows of a DataFrame, on several workers.

    A batch is a dict with a tensor for each column. Learning rates are those for one worker, and are multiplied by the
    number of workers. Each row is used once in an epoch; with batches of one row, a last step with fewer rows than
    workers is omitted. Rank 0 writes a checkpoint into the store after each epoch, and a training with an existing
    `run_id` continues from it.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.

    Raises:
        TypeError: there is no such parameter.

    Example:
        >>> estimator = LightningEstimator(  # doctest: +SKIP
        ...     num_proc=2, store=Store.create("/shared/store"), model=module,
        ...     feature_cols=["x"], label_cols=["y"], epochs=10)
        >>> estimator.fit(frame).transform(frame).show()  # doctest: +SKIP
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **{name: declared for name, declared in PARAMETERS.items() if name not in (*_OF_THE_MODULE, "elastic")},
        **SHAPES,
        "callbacks": ([], "Lightning's callbacks; a ModelCheckpoint with monitor= decides which model is returned"),
        "logger": (None, "a logger of Lightning's"),
        "log_every_n_steps": (50, "steps between values for the logger"),
        "trainer_args": ({}, "other arguments of Lightning's Trainer"),
        "use_gpu": (True, "whether workers train on GPUs if there are any"),
    }
    UNUSED: ClassVar[Mapping[str, Any]] = {
        **{name: why for name, why in UNUSED.items() if name != "callbacks"},
        **dict.fromkeys(_OF_THE_MODULE, "the LightningModule has its own"),
        "elastic": "the number of workers stays: use farandole.spark.run_elastic and the strategy farandole",
        "label_shapes": "columns have their shapes",
        "num_gpus": "each worker uses one GPU, if there are any",
        "loader_num_epochs": "an epoch has each row once",
        "terminate_on_nan": "give trainer_args={'detect_anomaly': True}",
        "profiler": "give it in trainer_args",
        "debug_data_loader": "rows are read by farandole.parquet",
        "train_async_data_loader_queue_size": "rows are read by farandole.parquet",
        "val_async_data_loader_queue_size": "rows are read by farandole.parquet",
    }
    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        **checks.OF_ESTIMATORS,
        **CHECKS_OF_SHAPES,
        "model": (
            lambda value: isinstance(value, lightning.LightningModule),
            "a LightningModule: farandole.spark.torch.TorchEstimator trains other modules of PyTorch",
        ),
        "callbacks": (
            checks.list_of(lambda value: isinstance(value, lightning.Callback)),
            "a list of Lightning's callbacks",
        ),
        "logger": (_is_logger, "a logger of Lightning, or a list of loggers"),
        "log_every_n_steps": (checks.at_least(0), "a number of steps: give an integer, 0 or more"),
        "trainer_args": (_are_of_trainer, "a dict of arguments of lightning.Trainer"),
        "use_gpu": checks.FLAG,
    }
    RUNS = "lightning"

    def _function(self) -> Callable[[Any], Any]:
        return train

    def _task(self, rows: Rows, run: str) -> LightningTask:
        trained = tuple(map(self.value, ("model", "callbacks", "logger")))
        return LightningTask(
            **self._common(rows, run, cloudpickle.dumps(trained)),
            input_shapes=self.value("input_shapes"),
            float_inputs=self.value("float_inputs"),
            trainer_args={"log_every_n_steps": self.value("log_every_n_steps"), **self.value("trainer_args")},
            use_gpu=self.value("use_gpu"),
        )

    def _model(self, checkpoint: bytes, run: str, result: Any, types: dict[str, Any]) -> LightningModel:
        store, module = self.value("store"), cloudpickle.loads(cloudpickle.dumps(self.value("model")))
        best = best_of(store.get_checkpoint_path(run))
        state = store.read(best) if store.exists(best) else checkpoint
        module.load_state_dict(torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)["state_dict"])
        return LightningModel(
            model=module,
            history=result["history"],
            output_sizes=result["sizes"],
            output_types=types,
            run_id=run,
            **{name: self.value(name) for name in ("feature_cols", "label_cols", *SHAPES)},
        )


class LightningModel(TorchModel):
    """A trained Lightning module, whose `forward` adds a column for each output to DataFrames.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.
    """
