"""Changes to Keras' own methods for a model whose optimizer is distributed.

A script only calls `model.compile(optimizer=hvd.DistributedOptimizer(optimizer))`. The methods that Keras then calls
are changed for this optimizer, and do the same as before for others:

- `compile`: XLA, which cannot compile collectives on the TensorFlow backend, is switched off there; and an argument of
  Keras 2 that Horovod's examples pass is dropped.
- `make_train_function`: the ranks' weights are compared, errors of a collective are raised as farandole's, and steps
  are counted.
- `LossScaleOptimizer`: gradients are reduced before it checks whether they are finite, because all ranks must have the
  same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import keras

from farandole.keras import backends, left_out
from farandole.keras.weight_check import compare_weights
from farandole.worker.core.basics import count_step

# What farandole has wrapped has this attribute.
_MARK = "_farandole_wrapped"
# Set on a model whose compiled step reduces no gradients.
_LEFT_OUT = "_farandole_left_out"


def install(is_distributed: Callable[[Any], bool], take_over: Callable[[Any], None]) -> None:
    """Install the changes in this process; no-op if they are installed.

    Args:
        is_distributed: a function that returns whether an optimizer is distributed.
        take_over: a function that makes a loss-scale optimizer distributed if its inner optimizer is.
    """
    trainer = next(each for each in keras.Model.__mro__ if "make_train_function" in vars(each))
    compiler = next(each for each in keras.Model.__mro__ if "compile" in vars(each))
    _wrap(compiler, "compile", lambda plain: _compile(plain, is_distributed))
    _wrap(trainer, "make_train_function", lambda plain: _make_train_function(plain, is_distributed))
    _wrap(keras.optimizers.LossScaleOptimizer, "__init__", lambda plain: _scale_loss(plain, is_distributed, take_over))


def install_for_keras_2(model_class: Any, is_distributed: Callable[[Any], bool]) -> None:
    """Install the changes that tf_keras needs; no-op if they are installed."""
    _wrap(model_class, "make_train_function", lambda plain: _make_train_function(plain, is_distributed, "tensorflow"))


def _wrap(cls: type, name: str, wrapper: Callable[[Any], Any]) -> None:
    plain = getattr(cls, name)
    if not getattr(plain, _MARK, False):
        wrapped = wraps(plain)(wrapper(plain))
        setattr(wrapped, _MARK, True)
        setattr(cls, name, wrapped)


def _compile(plain: Any, is_distributed: Callable[[Any], bool]) -> Any:
    def compile(model: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = args[0] if args else kwargs.get("optimizer")
        if is_distributed(optimizer):
            # An argument from the time of TensorFlow 2.0, which has no effect any more.
            kwargs.pop("experimental_run_tf_function", None)
        if is_distributed(optimizer) and backends.name() == "tensorflow" and len(args) < 8:
            if kwargs.get("jit_compile", "auto") not in ("auto", False, None):
                warnings.warn(
                    "jit_compile=True is left out: XLA cannot compile the collectives of DistributedOptimizer. Pass "
                    "jit_compile=False to compile(). Before it, model.call = tf.function(model.call, jit_compile=True) "
                    "lets XLA compile the forward and backward pass.",
                    RuntimeWarning,
                    stacklevel=3,
                )
            kwargs["jit_compile"] = False
        return plain(model, *args, **kwargs)

    return compile


def _make_train_function(plain: Any, is_distributed: Callable[[Any], bool], backend: str | None = None) -> Any:
    def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
        # A model with a custom step may have several optimizers, under other names.
        if not any(map(is_distributed, (model.optimizer, *vars(model).values()))):
            return plain(model, *args, **kwargs)
        if (backend or backends.name()) == "tensorflow" and model.jit_compile:
            model.jit_compile = False  # The optimizer was set after compile().
        if getattr(model, _LEFT_OUT, False) != left_out.is_on():
            # A step that was compiled to reduce gradients cannot be used where they are not reduced, and the other way
            # round.
            kwargs["force"], args = True, ()
            setattr(model, _LEFT_OUT, left_out.is_on())
        result = plain(model, *args, **kwargs)
        function = model.train_function
        if function is not None and not getattr(function, _MARK, False):
            # In tf_keras, this is a variable and no number.
            steps = getattr(model, "steps_per_execution", 1)
            used = backend or backends.name()
            model.train_function = _train_function(model, function, used, steps if isinstance(steps, int) else 1)
            return model.train_function if result is function else result
        return result

    return make_train_function


def _train_function(model: Any, function: Any, backend: str, steps: int) -> Any:
    translate = backends.chosen(backend).translate

    @wraps(function)
    def train(*args: Any, **kwargs: Any) -> Any:
        compare_weights(model, args, backend)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            ours = translate(error)
            if ours is None:
                raise
            raise ours from error
        for _ in range(steps):
            count_step()
        return result

    setattr(train, _MARK, True)
    return train


def _scale_loss(plain: Any, is_distributed: Callable[[Any], bool], take_over: Callable[[Any], None]) -> Any:
    def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        plain(optimizer, *args, **kwargs)
        if is_distributed(optimizer.inner_optimizer):
            take_over(optimizer)

    return __init__
