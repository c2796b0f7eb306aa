"""`TorchEstimator`: PyTorch models as stages of `pyspark.ml`."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from farandole.base.display.wording import count
from farandole.base.installed import not_installed

try:
    import cloudpickle  # type: ignore[import-untyped]
    import torch
except ModuleNotFoundError as error:
    raise not_installed("farandole.spark.torch", error, "spark,torch") from error

from farandole.errors import InvalidRequestError
from farandole.spark import checks
from farandole.spark.estimator import OF_MODELS, PARAMETERS, BaseEstimator, BaseModel
from farandole.spark.preparation import Rows
from farandole.spark.torch_training import Objective, TorchTask, as_inputs, as_list, train

__all__ = ["TorchEstimator", "TorchModel"]

SHAPES: Mapping[str, Any] = {
    "input_shapes": (None, "the shape of each input, beginning with -1; by default that of the column"),
    "float_inputs": (False, "whether integers in feature_cols become floating-point numbers"),
}
CHECKS_OF_SHAPES: Mapping[str, checks.Check] = {"input_shapes": checks.SHAPES, "float_inputs": checks.FLAG}


class TorchEstimator(BaseEstimator):
    """Trains a PyTorch model on the rows of a DataFrame, on several workers.

    The workers read the rows in an elastic loop: each row is used once in an epoch. Rank 0 writes a checkpoint into the
    store after each epoch, and a training with an existing `run_id` continues from it.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.

    Raises:
        TypeError: there is no such parameter.

    Example:
        >>> estimator = TorchEstimator(  # doctest: +SKIP
        ...     num_proc=2, store=Store.create("/shared/store"), model=model, optimizer=optimizer,
        ...     loss=F.mse_loss, feature_cols=["x"], label_cols=["y"], batch_size=32, epochs=10)
        >>> estimator.fit(frame).transform(frame).show()  # doctest: +SKIP
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **PARAMETERS,
        **SHAPES,
        "loss_constructors": (None, "functions that return the losses, instead of loss"),
        "label_shapes": (None, "the shape of each label; by default that of the output if it has as many numbers"),
        "train_minibatch_fn": (None, "your own function for a step, with Horovod's arguments"),
        "use_gpu": (True, "whether workers train on GPUs if there are any"),
    }
    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        **checks.OF_ESTIMATORS,
        **CHECKS_OF_SHAPES,
        "model": (lambda value: isinstance(value, torch.nn.Module), "an object of a subclass of torch.nn.Module"),
        "optimizer": (
            lambda value: isinstance(value, torch.optim.Optimizer),
            "one of torch.optim, such as torch.optim.SGD(model.parameters(), lr=0.1)",
        ),
        "loss_weights": (checks.list_of(lambda value: isinstance(value, int | float)), "a list of numbers"),
        "label_shapes": checks.SHAPES,
        "train_minibatch_fn": checks.FUNCTION,
        "use_gpu": checks.FLAG,
    }
    REQUIRED = (*BaseEstimator.REQUIRED, "optimizer")
    RUNS = "pytorch"
    EACH_NEEDS_A_ROW = False

    def _function(self) -> Callable[[Any], Any]:
        return train

    def _check(self) -> None:
        super()._check()
        self._objective()
        own = set(map(id, self.value("model").parameters()))
        if any(id(each) not in own for group in self.value("optimizer").param_groups for each in group["params"]):
            raise InvalidRequestError("the optimizer has parameters of another model: create it for this one's.")

    def _task(self, rows: Rows, run: str) -> TorchTask:
        trained = self.value("model"), self.value("optimizer"), self._objective()
        store = self.value("store")
        checkpoint = store.get_checkpoint_path(run)
        return TorchTask(
            # In one pickle, because the optimizer holds the very parameters of the model.
            **self._common(rows, run, cloudpickle.dumps(trained)),
            begun=store.read(checkpoint) if store.exists(checkpoint) else None,
            input_shapes=self.value("input_shapes"),
            label_shapes=self.value("label_shapes"),
            float_inputs=self.value("float_inputs"),
            use_gpu=self.value("use_gpu"),
        )

    def _objective(self) -> Objective:
        labels = self.value("label_cols")
        makers = _listed(self.value("loss_constructors"))
        if wrong := [each for each in makers if not callable(each)]:
            raise InvalidRequestError(f"loss_constructors has {wrong[0]!r:.80}, which is not a function.")
        made = [make() for make in makers]
        if bool(made) == bool(self.value("loss")):
            raise InvalidRequestError("TorchEstimator needs either loss= or loss_constructors=.")
        losses = made or _listed(self.value("loss"))
        losses = losses * len(labels) if len(losses) == 1 else losses
        weights = self.value("loss_weights") or [1 / len(labels)] * len(labels)
        if not len(losses) == len(weights) == len(labels):
            raise InvalidRequestError(
                f"there are {len(labels)} labels, {len(losses)} losses and {len(weights)} weights of losses: give one "
                "of each for each label."
            )
        if wrong := [each for each in losses if not callable(each)]:
            raise InvalidRequestError(
                f"loss {wrong[0]!r} is not a function: give one of PyTorch, such as torch.nn.functional.mse_loss."
            )
        if not isinstance(metrics := self.value("metrics"), list | tuple):
            raise InvalidRequestError(f"metrics={metrics!r} is not a list of functions, or of lists of functions.")
        metrics = [_listed(group) for group in metrics]
        if wrong := [each for group in metrics for each in group if not callable(each)]:
            raise InvalidRequestError(
                f"metric {wrong[0]!r} is not a function: give one of PyTorch, such as torch.nn.functional.l1_loss."
            )
        if wrong := [group for group in metrics if len(group) not in (1, len(labels))]:
            raise InvalidRequestError(
                f"a group of metrics has {count(len(wrong[0]), 'function')}, but there are {len(labels)} labels: give "
                "one for all, or one for each label."
            )
        return Objective(losses, weights, metrics, labels, self.value("train_minibatch_fn"))

    def _model(self, checkpoint: bytes, run: str, result: Any, types: dict[str, Any]) -> TorchModel:
        model, optimizer = cloudpickle.loads(cloudpickle.dumps((self.value("model"), self.value("optimizer"))))
        state = torch.load(io.BytesIO(checkpoint), map_location="cpu", weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return TorchModel(
            model=model,
            optimizer=optimizer,
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
            history=result["history"],
            output_sizes=result["sizes"],
            output_types=types,
            run_id=run,
            **{name: self.value(name) for name in ("feature_cols", "label_cols", *SHAPES)},
        )


class TorchModel(BaseModel):
    """A trained PyTorch model, which adds a column for each output to DataFrames.

    Args:
        parameters: the parameters, by keyword; `explainParams()` lists them.
    """

    PARAMETERS: ClassVar[Mapping[str, Any]] = {
        **OF_MODELS,
        **SHAPES,
        "output_sizes": (None, "the numbers in each output of a row; None: one, which is no vector"),
        "optimizer": (None, "the optimizer with its state"),
        "loss": (None, "the losses of the training"),
        "loss_constructors": (None, "functions that return them"),
    }
    CHECKS: ClassVar[Mapping[str, checks.Check]] = {**checks.OF_MODELS, **CHECKS_OF_SHAPES}

    def _sizes(self) -> list[int | None]:
        return self.value("output_sizes") or [None] * len(self.value("label_cols"))

    def _predictor(self) -> Callable[[], Callable[[list[Any]], list[Any]]]:
        pickled, shapes, as_float = cloudpickle.dumps(self.value("model")), *map(self.value, SHAPES)

        def load() -> Callable[[list[Any]], list[Any]]:
            model = cloudpickle.loads(pickled).eval()

            def predict(columns: list[Any]) -> list[Any]:
                with torch.no_grad():
                    outputs = model(*as_inputs([torch.as_tensor(each) for each in columns], shapes, as_float))
                return [each.numpy() for each in as_list(outputs)]

            return predict

        return load


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
