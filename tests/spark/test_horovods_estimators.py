"""The parameters and methods of Horovod's estimators and models, from its documentation. No Spark is started."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["KERAS_BACKEND"] = "torch"

from horovod.spark import keras, lightning, torch

OF_ALL = {
    **dict.fromkeys(
        "num_proc model backend store optimizer loss loss_weights feature_cols label_cols sample_weight_col "
        "continuous_cols categorical_cols label_shapes validation val_batch_size train_steps_per_epoch "
        "validation_steps_per_epoch shuffle_buffer_size run_id transformation_fn transformation_edit_fields "
        "transformation_removed_fields train_reader_num_workers val_reader_num_workers reader_pool_type "
        "gradient_compression mp_start_method data_module random_seed inmemory_cache_all compress_sparse_cols "
        "backward_passes_per_step use_gpu".split()
    ),
    **{"metrics": [], "callbacks": [], "batch_size": 32, "epochs": 1, "shuffle": True},
    **{"partitions_per_process": 10, "verbose": 1},
}
KERAS = {"custom_objects": {}, **dict.fromkeys(["checkpoint_callback", "tensorflow_dataset_prefetch_buffer_size"])}
TORCH = dict.fromkeys(["input_shapes", "loss_constructors", "train_minibatch_fn"])
LIGHTNING = {
    **dict.fromkeys(
        "input_shapes loss_constructors num_gpus logger loader_num_epochs terminate_on_nan profiler debug_data_loader "
        "train_async_data_loader_queue_size val_async_data_loader_queue_size".split()
    ),
    "log_every_n_steps": 50,
}
ESTIMATORS = [
    (keras.KerasEstimator, {**OF_ALL, **KERAS}),
    (torch.TorchEstimator, {**OF_ALL, **TORCH}),
    (lightning.TorchEstimator, {**OF_ALL, **LIGHTNING}),
]
# Our defaults: order and split are the same in each run, and a GPU is used if there is one.
OWN_DEFAULTS = {"random_seed": 0, "use_gpu": True}


@pytest.mark.parametrize(("kind", "parameters"), ESTIMATORS)
def test_each_parameter_is_taken_or_its_uselessness_is_told(kind: Any, parameters: dict[str, Any]) -> None:
    for name, default in parameters.items():
        words = "".join(each.capitalize() for each in name.split("_"))
        estimator = kind()
        value = object()
        if name in kind.UNUSED:
            with pytest.warns(UserWarning, match=f"^{name} does nothing here: "):
                kind(**{name: value})
            with pytest.warns(UserWarning, match=f"^{name} does nothing here: "):
                assert getattr(estimator, f"set{words}")(value) is estimator
        else:
            assert getattr(estimator, f"get{words}")() == OWN_DEFAULTS.get(name, default), name
            assert getattr(estimator, f"set{words}")(value) is estimator
            assert getattr(estimator, f"get{words}")() is value
            assert getattr(kind(**{name: value}), f"get{words}")() is value


@pytest.mark.parametrize("kind", [kind for kind, _ in ESTIMATORS])
@pytest.mark.parametrize(
    "name", ["setShufflingBufferSize", "setTrainReaderNumWorker", "setValReaderNumWorker", "setInMemoryCacheAll"]
)
@pytest.mark.filterwarnings("ignore:.* does nothing here:UserWarning")
def test_irregular_names_of_setters(kind: Any, name: str) -> None:
    estimator = kind()
    assert getattr(estimator, name)(1) is estimator


MODEL = "getModel getHistory getFeatureColumns getLabelColumns getRunId getOutputCols setOutputCols"
OF_TORCH = "getOptimizer getInputShapes getLoss getLossConstructors"


@pytest.mark.parametrize(
    ("kind", "own"),
    [(keras.KerasModel, "getCustomObjects"), (torch.TorchModel, OF_TORCH), (lightning.TorchModel, OF_TORCH)],
)
def test_methods_of_models(kind: Any, own: str) -> None:
    model = kind(label_cols=["y"])
    for name in (*MODEL.split(), *own.split()):
        assert callable(getattr(model, name)), name
    assert model.getOutputCols() == ["y__output"]
    assert model.setOutputCols(["z"]).getOutputCols() == ["z"]
    assert model.setFeatureColumns(["a"]).setLabelColoumns(["b"]).getFeatureColumns() == ["a"]
    assert model.getLabelColumns() == ["b"]
