"""Estimators fit, save, load and transform; on Spark in one process, and with a backend whose worker is this one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow
import pyarrow.parquet
import pytest
import torch
import torch.nn.functional as F
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import SparkSession
from spark_sessions import start_spark

from farandole.spark.backend import Backend
from farandole.spark.preparation import prepare_data
from farandole.spark.store import Store
from farandole.spark.torch import TorchEstimator, TorchModel
from farandole.spark.training import Task

cloudpickle.register_pickle_by_value(sys.modules[__name__])
os.environ["KERAS_BACKEND"] = "torch"

ROWS = 103


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Any:
    """Rows with y = 2a - b + 1, and with its sign as a class."""
    rows = [(i, a, b, 2 * a - b + 1, int(2 * a - b + 1 > 0), i % 4 == 0) for i in range(ROWS) for a, b in [place(i)]]
    return spark.createDataFrame(rows, ["id", "a", "b", "y", "sign", "held"])


def place(i: int) -> tuple[float, float]:
    return (i * 7 % ROWS) / ROWS * 2 - 1, (i * 31 % ROWS) / ROWS * 2 - 1


class Here(Backend):
    """One worker: this process, as users' backends may be, which saves the time to start another one."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Mapping[str, str] | None = None) -> list[Any]:
        import farandole.torch as hvd

        try:
            return [fn(*args, **(kwargs or {}))]
        finally:
            hvd.shutdown()

    def num_processes(self) -> int:
        return 1


class Never(Here):
    """Two workers that must not be started."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Mapping[str, str] | None = None) -> list[Any]:
        raise AssertionError("the training was started")

    def num_processes(self) -> int:
        return 2


class Line(torch.nn.Module):
    """A linear function of two numbers."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, outputs)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.stack([a, b], dim=1))


def estimator(folder: Path, **parameters: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = Line()
    usual = {
        "store": Store.create(str(folder)),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.2),
        "loss": F.mse_loss,
        "feature_cols": ["a", "b"],
        "label_cols": ["y"],
        "batch_size": 8,
        "epochs": 8,
        "partitions_per_process": 2,
        "verbose": 0,
        "run_id": "line",
    }
    if "num_proc" not in parameters:
        usual["backend"] = Here()
    return TorchEstimator(**{**usual, **parameters})


def errors(model: Any, frame: Any, label: str = "y") -> float:
    rows = model.transform(frame).collect()
    return max(abs(row[f"{label}__output"] - row[label]) for row in rows)


@pytest.mark.parametrize("workers", [{"num_proc": 2}, {"num_proc": 2, "elastic": (1, 2)}])
def test_torch_model_is_trained_by_two_workers(frame: Any, tmp_path: Path, workers: dict[str, Any]) -> None:
    metrics = [[F.l1_loss]]
    model = estimator(tmp_path, metrics=metrics, validation="held", **workers).fit(frame)
    history = model.getHistory()
    assert [each["epoch"] for each in history] == list(range(8))
    assert history[-1]["train"]["loss"] < 1e-2 < history[0]["train"]["loss"]
    assert history[-1]["validation"]["all_metrics"][0]["group_0_y"] < 0.1
    assert errors(model, frame) < 0.2
    assert model.getOptimizer().param_groups[0]["lr"] == 0.2, "the rate of one worker"
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {"runs"}, "the rows are gone"


def test_fewer_rows_than_workers_are_trained_on(frame: Any, tmp_path: Path) -> None:
    history = estimator(tmp_path, num_proc=2, epochs=2).fit(frame.limit(1)).getHistory()
    assert [each["epoch"] for each in history] == [0, 1]


def test_rows_and_columns_stay_and_outputs_have_their_labels_types(frame: Any, tmp_path: Path) -> None:
    model = estimator(tmp_path, epochs=1).fit(frame)
    frame = VectorAssembler(inputCols=["a", "b"], outputCol="both").transform(frame)
    model.setBatchSize(10)
    before, after = frame.collect(), model.transform(frame)
    assert after.columns == [*frame.columns, "y__output"]
    assert dict(after.dtypes)["y__output"] == "double"
    assert [row[: len(frame.columns)] for row in after.collect()] == [tuple(row) for row in before]
    with torch.no_grad():
        expected = model.getModel()(torch.tensor([row.a for row in before]), torch.tensor([row.b for row in before]))
    assert [row.y__output for row in after.collect()] == pytest.approx(expected.flatten().tolist(), abs=1e-5)
    with pytest.raises(ValueError, match="has a column 'y__output' already"):
        model.transform(after)
    with pytest.raises(ValueError, match="has no column 'b': it has a"):
        model.transform(frame.select("a"))
    for wrong, why in (
        ({"output_cols": ["one", "two"]}, "the model has 1 output, but there are names for 2"),
        ({"output_cols": "one"}, "output_cols='one' is not a list of columns"),
        ({"batch_size": 0}, "batch_size=0 is not a number of rows"),
        ({"input_shapes": [[-1]]}, "input_shapes has 1 shape, but feature_cols has 2 names"),
    ):
        with pytest.raises(ValueError, match=why):
            model.copy({model.getParam(name): value for name, value in wrong.items()}).transform(frame)
    assert model.setOutputCols(["other"]).transform(after).columns[-1] == "other"


def test_a_column_may_be_input_and_label(frame: Any, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    same = {"feature_cols": ["a"], "label_cols": ["a"], "sample_weight_col": "a"}
    fitted = estimator(tmp_path, model=model, optimizer=optimizer, **same).fit(frame.filter("a > 0"))
    assert fitted.getHistory()[-1]["train"]["loss"] < 0.01


def test_vectors_and_classes(frame: Any, tmp_path: Path) -> None:
    both = VectorAssembler(inputCols=["a", "b"], outputCol="both")
    model = torch.nn.Linear(2, 2)
    torch_estimator = estimator(
        tmp_path,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.05),
        loss=F.cross_entropy,
        feature_cols=["both"],
        label_cols=["sign"],
        sample_weight_col="weight",
        validation=0.2,
        num_proc=2,
    )
    with_weight = frame.selectExpr("*", "cast(1 as double) as weight")
    fitted = Pipeline(stages=[both, torch_estimator]).fit(with_weight)
    fitted.write().overwrite().save(str(tmp_path / "saved"))
    loaded = PipelineModel.load(str(tmp_path / "saved"))
    rows = loaded.transform(with_weight).collect()
    right = sum(int(row.sign__output.toArray().argmax()) == row.sign for row in rows)
    assert right > 0.8 * ROWS


def test_saved_stages_are_loaded_and_a_run_goes_on(frame: Any, tmp_path: Path) -> None:
    first = estimator(tmp_path / "store", epochs=2)
    first.save(str(tmp_path / "estimator"))
    begun = first.fit(frame)
    begun.save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.getHistory() == begun.getHistory()
    assert errors(loaded, frame) == errors(begun, frame)
    again = TorchEstimator.load(str(tmp_path / "estimator"))
    with pytest.raises(ValueError, match="needs store="):
        again.fit(frame)
    store = first.getStore()
    resumed = again.copy({again.store: store, again.backend: Here(), again.epochs: 4}).fit(frame)
    assert resumed.getHistory()[:2] == begun.getHistory()
    losses = [each["train"]["loss"] for each in resumed.getHistory()]
    assert len(losses) == 4 and losses[3] < losses[1]


def test_parquet_files_of_the_store_and_own_step(frame: Any, tmp_path: Path) -> None:
    def step(model, optimizer, reshape, loss_of, inputs, labels, weights, passes, number):  # type: ignore[no-untyped-def]
        outputs, labels = reshape(model(*inputs), labels)
        loss = loss_of(outputs, labels, weights)
        loss.backward()
        optimizer.step()
        return outputs, loss

    fitted = estimator(tmp_path, train_minibatch_fn=step)
    frame.write.parquet(fitted.getStore().get_train_data_path())
    model = fitted.fit_on_parquet()
    assert errors(model, frame) < 0.3
    assert model.getFeatureColumns() == ["a", "b"]


def test_what_does_not_fit_is_refused(frame: Any, tmp_path: Path) -> None:
    unfit = frame.selectExpr("*", "'a' as text", "array('a') as texts", "1.25 as price", "false as never")
    for parameters, why in (
        ({"store": None}, "needs store=: the Store"),
        ({"label_cols": None}, "needs label_cols="),
        ({"feature_cols": ["c"]}, "has no column 'c': it has id, a, b"),
        ({"validation": 1.5}, "not a fraction below 1"),
        ({"validation": "c"}, "'c' is not a column"),
        ({"loss_weights": [1, 2]}, "1 labels, 1 losses and 2 weights"),
        ({"loss": None}, "either loss= or loss_constructors="),
        ({"loss": "mse"}, "loss 'mse' is not a function: give one of PyTorch"),
        ({"label_cols": "y"}, r"label_cols='y' is not a list of columns, such as"),
        ({"model": Line}, "model=.* is not an object of a subclass of torch.nn.Module"),
        ({"optimizer": torch.optim.SGD}, "optimizer=.* is not one of torch.optim"),
        ({"optimizer": None}, "needs optimizer=: the optimizer, with"),
        ({"optimizer": torch.optim.SGD(Line().parameters(), lr=0.1)}, "the optimizer has parameters of another model"),
        ({"num_proc": 2, "backend": Here()}, "either backend or num_proc"),
        ({"epochs": 0}, "epochs=0 is not a number of epochs"),
        ({"epochs": -1}, "epochs=-1 is not a number of epochs"),
        ({"batch_size": 0}, "batch_size=0 is not a number of rows"),
        ({"batch_size": 1.5}, "batch_size=1.5 is not a number of rows"),
        ({"val_batch_size": 0}, "val_batch_size=0 is not a number of rows"),
        ({"partitions_per_process": 0}, "partitions_per_process=0 is not a number of files"),
        ({"feature_cols": ["a", "text"]}, "column 'text' has values of type string, which are not numbers"),
        ({"label_cols": ["texts"]}, "column 'texts' has values of type array<string>"),
        ({"sample_weight_col": "price"}, r"column 'price' has values of type decimal\(3,2\)"),
        ({"validation": [0.1]}, r"validation=\[0.1\] is not a fraction below 1, nor a column"),
        ({"store": "/shared"}, r"store='/shared' is not a Store, such as Store.create"),
        ({"metrics": ["mae"]}, "metric 'mae' is not a function: give one of PyTorch"),
        ({"metrics": F.l1_loss}, "metrics=<function l1_loss.* is not a list of functions"),
        ({"metrics": [[F.l1_loss, F.mse_loss]]}, "a group of metrics has 2 functions, but there are 1 labels"),
        ({"backend": "spark"}, "backend='spark' is not a Backend, such as"),
        ({"feature_cols": {"a", "b"}}, "feature_cols={.* is not a list of columns"),
        ({"feature_cols": [["a", "b"]]}, r"feature_cols=\[\['a', 'b'\]\] is not a list of columns"),
        ({"sample_weight_col": ["a"]}, r"sample_weight_col=\['a'\] is not the name of a column"),
        ({"gradient_compression": "fp16"}, "gradient_compression='fp16' is not one of hvd.Compression, such as"),
        ({"run_id": "../x"}, "run_id='../x' is not a name: give text without /"),
        ({"run_id": 7}, "run_id=7 is not a name"),
        ({"shuffle": "no"}, "shuffle='no' is not True or False"),
        ({"use_gpu": "no"}, "use_gpu='no' is not True or False"),
        ({"random_seed": "x"}, "random_seed='x' is not an integer"),
        ({"verbose": "x"}, "verbose='x' is not 0, 1 or 2"),
        ({"loss_weights": 0.5}, "loss_weights=0.5 is not a list of numbers"),
        ({"loss": None, "loss_constructors": ["mse"]}, "loss_constructors has 'mse', which is not a function"),
        ({"train_minibatch_fn": "step"}, "train_minibatch_fn='step' is not a function"),
        ({"input_shapes": [2]}, r"input_shapes=\[2\] is not a list of shapes, one for each column"),
        ({"input_shapes": [[-1, 1], [4, 1]]}, "input_shapes=.* is not a list of shapes"),
        ({"label_shapes": [[-1, 0]]}, "label_shapes=.* is not a list of shapes"),
        ({"input_shapes": [[-1, 1]]}, "input_shapes has 1 shape, but feature_cols has 2 names"),
        ({"input_shapes": [[-1], [-1, 3]]}, r"\[-1, 3\] for the column 'b', which is 3 numbers .* its rows have 1"),
        ({"label_shapes": [[-1, 2]]}, r"label_shapes has \[-1, 2\] for the column 'y'"),
        ({"validation": "never"}, "rows for validation cannot be used: .* have no rows"),
    ):
        with pytest.raises(ValueError, match=why):
            made = estimator(tmp_path, **{"backend": Never(), **parameters})
            for name in [name for name, value in parameters.items() if value is None]:
                made.clear(made.getParam(name))
            made.fit(unfit)
    with pytest.raises(ValueError, match=r"rows for training cannot be used: .* have no rows"):
        estimator(tmp_path, backend=Never()).fit(frame.limit(0))
    with pytest.raises(ValueError, match="a dict is not a DataFrame of Spark"):
        estimator(tmp_path, backend=Never()).fit({"a": [1.0]})
    with pytest.raises(TypeError, match="TorchEstimator has no parameter 'feature_columns': there are"):
        TorchEstimator(feature_columns=["a"])
    with pytest.warns(UserWarning, match="reader_pool_type does nothing here: rows are read by"):
        TorchEstimator(reader_pool_type="thread")
    assert not list(tmp_path.iterdir())


# Keras 3.15 warns where its tensors of PyTorch become arrays.
keras_warns = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@keras_warns
@pytest.mark.parametrize("workers", [{"num_proc": 2}, {"backend": Here()}])
def test_keras_model_is_trained_saved_and_loaded(frame: Any, tmp_path: Path, workers: dict[str, Any]) -> None:
    import keras

    from farandole.spark.keras import KerasEstimator, KerasModel

    keras.utils.set_random_seed(0)
    both = VectorAssembler(inputCols=["a", "b"], outputCol="both").transform(frame)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    fitted = KerasEstimator(
        store=Store.create(str(tmp_path)),
        model=model,
        optimizer=keras.optimizers.SGD(0.1),
        loss="mse",
        metrics=["mae"],
        feature_cols=["both"],
        label_cols=["y"],
        validation=0.2,
        batch_size=8,
        epochs=8,
        run_id="keras",
        verbose=0,
        **workers,
    )
    trained = fitted.fit(both)
    history = trained.getHistory()
    assert len(history["val_loss"]) == len(history["loss"]) == 8
    assert history["loss"][-1] < 0.05 < history["loss"][0]
    assert errors(trained, both) < 0.5
    trained.save(str(tmp_path / "model"))
    assert errors(KerasModel.load(str(tmp_path / "model")), both) == errors(trained, both)
    more = fitted.setEpochs(9).fit(both)
    assert more.getHistory()["loss"][:8] == history["loss"] and len(more.getHistory()["loss"]) == 9


def lightning_module() -> Any:
    import lightning

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 1)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.line(torch.stack([a, b], dim=1))

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = F.mse_loss(self(batch["a"], batch["b"]).flatten(), batch["y"])
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            self.log("val_loss", F.mse_loss(self(batch["a"], batch["b"]).flatten(), batch["y"]), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 100)]

    torch.manual_seed(0)
    return Line()


# Lightning warns of itself, for example of functions of PyTorch's that it calls.
lightning_warns = pytest.mark.filterwarnings("ignore")


def lightning_estimator(folder: Path, **parameters: Any) -> Any:
    from farandole.spark.lightning import LightningEstimator

    given = {
        "store": Store.create(str(folder)),
        "model": lightning_module(),
        "feature_cols": ["a", "b"],
        "label_cols": ["y"],
        "validation": 0.2,
        "batch_size": 8,
        "epochs": 8,
        "run_id": "lightning",
        "use_gpu": False,
        "verbose": 0,
    }
    return LightningEstimator(**{**given, **parameters})


@lightning_warns
@pytest.mark.parametrize("workers", [{"num_proc": 2}, {"backend": Here()}])
def test_module_of_lightning_is_trained_saved_loaded_and_goes_on(
    frame: Any, tmp_path: Path, workers: dict[str, Any]
) -> None:
    from farandole.spark.lightning import LightningModel

    fitted = lightning_estimator(tmp_path, **workers)
    trained = fitted.fit(frame)
    history = trained.getHistory()
    assert len(history["val_loss"]) == len(history["loss"]) == 8
    assert history["loss"][-1] < 0.05 < history["loss"][0]
    assert errors(trained, frame) < 0.5
    trained.save(str(tmp_path / "model"))
    assert errors(LightningModel.load(str(tmp_path / "model")), frame) == errors(trained, frame)
    checkpoint = torch.load(tmp_path / "runs/lightning/checkpoint", weights_only=False)
    assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0.05)
    more = fitted.setEpochs(9).fit(frame)
    assert more.getHistory()["loss"][:8] == history["loss"] and len(more.getHistory()["loss"]) == 9


@lightning_warns
def test_best_model_of_lightning_is_returned(frame: Any, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    # With this rate, the training diverges: the first epoch is the best one.
    module = lightning_module()
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=3.0)
    best = ModelCheckpoint(monitor="val_loss")
    model = lightning_estimator(tmp_path, backend=Here(), model=module, callbacks=[best], epochs=3).fit(frame)
    first = lightning_estimator(tmp_path / "one", backend=Here(), model=module, epochs=1).fit(frame)
    assert errors(model, frame) == errors(first, frame)


def keras_estimator(folder: Path, **parameters: Any) -> Any:
    import keras

    from farandole.spark.keras import KerasEstimator

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    usual = {
        "model": model,
        "optimizer": keras.optimizers.SGD(),
        "loss": "mse",
        "feature_cols": ["a"],
        "label_cols": ["y"],
    }
    return KerasEstimator(**{"store": Store.create(str(folder)), **usual, **parameters})


@pytest.mark.parametrize(("validation", "what"), [(None, "training"), ("one", "validation")])
@pytest.mark.parametrize("kind", [keras_estimator, lightning_estimator])
def test_fewer_rows_than_workers_are_refused_where_each_worker_needs_one(
    frame: Any, tmp_path: Path, kind: Any, validation: str | None, what: str
) -> None:
    rows = frame.limit(1) if validation is None else frame.selectExpr("*", "id = 1 as one")
    with pytest.raises(ValueError, match=f"the {what} has 1 row, but each of 2 workers needs at least one"):
        kind(tmp_path, backend=Never(), validation=validation).fit(rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("size", "used"), [(1, 8), (2, 9), (3, 9), (4, 9), (32, 9)])
def test_all_rows_are_used_unless_batches_of_one_row_leave_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, used: int
) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": list(range(9)), "y": [0.0] * 9}), tmp_path / "rows.parquet")
    task = Task(
        **{**dict.fromkeys(Task.__dataclass_fields__), "store": Store.create(str(tmp_path)), "label_cols": ["y"]}
    )
    task = dataclasses.replace(task, feature_cols=["a"])
    found, steps = [], set()
    for rank in range(4):
        session = SimpleNamespace(world=SimpleNamespace(rank=rank, size=4))
        for module in ("farandole.parquet.batches", "farandole.worker.core.basics"):
            monkeypatch.setattr(f"{module}.session_if_any", lambda session=session: session)
        batches = list(task.batches(str(tmp_path / "rows.parquet"), size))
        found += [int(row) for batch in batches for row in batch["a"]]
        steps.add(len(batches))
    assert len(found) == len(set(found)) == used and len(steps) == 1


@keras_warns
def test_only_inputs_of_keras_may_be_texts(frame: Any, tmp_path: Path) -> None:
    rows = frame.selectExpr("*", "'a' as text")
    for kind, columns in (
        (lightning_estimator, {"feature_cols": ["text"]}),
        (keras_estimator, {"label_cols": ["text"]}),
    ):
        with pytest.raises(ValueError, match="column 'text' has values of type string"):
            kind(tmp_path, backend=Never(), **columns).fit(rows)
    with pytest.raises(AssertionError, match="the training was started"):
        keras_estimator(tmp_path, backend=Never(), feature_cols=["text"]).fit(rows)


def test_other_modules_are_not_lightnings(frame: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Linear\(.* is not a LightningModule: farandole\.spark\.torch"):
        lightning_estimator(tmp_path, model=torch.nn.Linear(2, 1), backend=Here()).fit(frame)
    with pytest.warns(UserWarning, match="optimizer does nothing here: the LightningModule has its own"):
        lightning_estimator(tmp_path, optimizer=torch.optim.SGD([torch.zeros(1)], lr=0.1))


@lightning_warns
@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"callbacks": [print]}, "callbacks=.* is not a list of Lightning's callbacks"),
        ({"logger": "runs"}, "logger='runs' is not a logger of Lightning"),
        ({"log_every_n_steps": "5"}, "log_every_n_steps='5' is not a number of steps"),
        ({"trainer_args": {"max_epoch": 5}}, "trainer_args=.* is not a dict of arguments of lightning.Trainer"),
        ({"input_shapes": [[-1, 2], [-1]]}, r"\[-1, 2\] for the column 'a'"),
        ({"gradient_compression": "fp16"}, "gradient_compression='fp16' is not one of"),
    ],
)
def test_what_lightning_cannot_use_is_refused(frame: Any, tmp_path: Path, parameters: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        lightning_estimator(tmp_path, backend=Never(), **parameters).fit(frame)


@keras_warns
def test_what_keras_cannot_use_is_refused(frame: Any, tmp_path: Path) -> None:
    for parameters, why in (
        ({"model": torch.nn.Linear(1, 1)}, "model=Linear.* is not a model of Keras 3, such as"),
        ({"optimizer": "sgd"}, "optimizer='sgd' is not an optimizer of Keras 3, such as"),
        ({"optimizer": None}, "needs optimizer=, or a model that has been compiled"),
        ({"loss": None}, "KerasEstimator needs loss="),
        ({"loss": "msee"}, "loss='msee' is not a loss of Keras"),
        ({"metrics": ["accuracy", "maee"]}, "metrics=.* is not a list or dict of metrics of Keras"),
        ({"callbacks": print}, "callbacks=.* is not a list of callbacks of Keras"),
        ({"custom_objects": [Line]}, "custom_objects=.* is not a dict"),
        ({"backend_env": ["secret"]}, "backend_env is a list, not a mapping"),
        ({"gradient_compression": "fp16"}, "gradient_compression='fp16' is not one of"),
        ({"run_id": ".."}, "run_id='..' is not a name"),
        (
            {"feature_cols": ["a", "b"]},
            "the model has 1 input, but feature_cols has 2 names: give a column for each input",
        ),
    ):
        with pytest.raises(ValueError, match=why):
            keras_estimator(tmp_path, backend=Never(), **parameters).fit(frame)
    metrics = ["accuracy", "mae"]
    with pytest.raises(AssertionError, match="the training was started"):
        keras_estimator(tmp_path, backend=Never(), metrics=metrics).fit(frame)


def test_data_are_prepared_once_for_several_trainings(frame: Any, tmp_path: Path) -> None:
    fitted = estimator(tmp_path)
    with prepare_data(1, fitted.getStore(), frame, label_columns=["y"], feature_columns=["a", "b"]) as index:
        first, second = (fitted.fit_on_parquet(dataset_idx=index) for _ in range(2))
    assert errors(first, frame) < 0.3 and errors(second, frame) < 0.3
    assert not list(tmp_path.glob("intermediate*"))
    with pytest.raises(ValueError, match="label_columns= is empty"), prepare_data(1, Store.create("/x"), frame, []):
        pass
    for wrong, why in (
        ({"label_columns": "y"}, "label_columns='y' is not a list of columns"),
        ({"num_processes": 1.5}, "num_processes=1.5 is not a number of workers"),
        ({"store": "/x"}, "store='/x' is not a Store"),
        ({"df": [1]}, "a list is not a DataFrame of Spark"),
    ):
        given = {"num_processes": 1, "store": Store.create("/x"), "df": frame, "label_columns": ["y"]}
        with pytest.raises(ValueError, match=why), prepare_data(**{**given, **wrong}):
            pass
    with pytest.raises(ValueError, match="has no column 'z'"), prepare_data(1, Store.create("/x"), frame, ["z"]):
        pass
