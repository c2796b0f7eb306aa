"""`DistributedOptimizer`: any Keras optimizer, whose steps use gradients that are reduced over all workers.

In Keras 3, all gradients pass through the optimizer's `apply`, in `fit`, `train_on_batch` or the user's own loop
(`stateless_apply` also calls it). So they are reduced there.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import keras
from keras import ops

from farandole.errors import InvalidRequestError
from farandole.keras import backends, keras_hooks, legacy, saved_classes
from farandole.keras.computed_gradients import ComputedGradients, PassCounter
from farandole.keras.keras_2_names import VariableList, lr
from farandole.keras.reduction import reduction
from farandole.worker.core.dtype import Adasum, Average
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.wrapper_gradients import GradientReduction, checked_layers
from farandole.worker.gradients.wrapper_options import WrapperOptions, checked


class Distributed(ComputedGradients):
    """A mixin class in front of the wrapped optimizer's class."""

    _farandole_options: WrapperOptions
    _farandole: GradientReduction
    _farandole_in_step = False
    """Whether the wrapped optimizer computes a step, in which `iterations` must have Keras' value."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._farandole: GradientReduction = reduction(self._farandole_options, self._key_of)

    def __reduce__(self) -> Any:
        """Pickle the optimizer by its saved form, as Keras does."""
        plain: Any = super().__reduce__()
        return _unpickled, (*plain[1], self._farandole_options)

    @property
    def variables(self) -> VariableList:
        """All variables of the optimizer."""
        return VariableList(super().variables)  # type: ignore[misc]

    lr = lr

    @property
    def _agg_helper(self) -> PassCounter | None:
        steps = getattr(self, "gradient_accumulation_steps", None)
        return PassCounter(self._passes() % steps) if steps else None

    def _several_passes(self) -> bool:
        return bool(getattr(self, "gradient_accumulation_steps", None))

    def _passes(self) -> Any:
        # `iterations` counts the passes in older versions of Keras, and the steps in newer ones.
        passes = getattr(self, "_iterations", None)
        return self.iterations if passes is None else passes  # type: ignore[attr-defined]

    def register_local_var(self, variable: Any) -> None:
        """Mark a variable as local: its gradient is not reduced.

        It is divided by the number of ranks, unless scale_local_gradients=False was passed.
        """
        self._farandole.register_local(variable)

    def apply_gradients(self, grads_and_vars: Iterable[Any], **of_keras_2: Any) -> Any:
        """Reduce the gradients, and take the wrapped optimizer's step.

        Args:
            grads_and_vars: pairs of a gradient and its variable.
            of_keras_2: arguments of Keras 2's optimizers, such as `name`, which are ignored.
        """
        return super().apply_gradients(grads_and_vars)  # type: ignore[misc]

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Reduce the gradients, and take the wrapped optimizer's step."""
        gradients: list[Any] = list(grads)
        given = trainable_variables if trainable_variables is None else list(trainable_variables)
        variables = self._trainable_variables if given is None else given  # type: ignore[attr-defined]
        # If these do not fit together, Keras raises its own error.
        is_ours = self._farandole.is_on and len(gradients) == len(variables)
        if is_ours and not (self._farandole_computed and self._are_computed(variables)):
            if self._farandole_options.op == Adasum and not self._farandole_options.is_local():
                self._step_and_combine(gradients, variables, given)
                return
            gradients = self._reduced(gradients, variables)
        self._plain_apply(gradients, given)

    def _plain_apply(self, gradients: list[Any], variables: list[Any] | None) -> None:
        before, self.__dict__["_farandole_in_step"] = self._farandole_in_step, True
        try:
            super().apply(gradients, variables)  # type: ignore[misc]
        finally:
            self.__dict__["_farandole_in_step"] = before

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        steps = getattr(self, "gradient_accumulation_steps", None)
        if not steps:
            return self._farandole.reduce(gradients, variables)
        if not self.built:  # type: ignore[attr-defined]
            with keras.name_scope(self.name):  # type: ignore[attr-defined]
                self.build(variables)  # type: ignore[attr-defined]
        return self._reduced_at_the_end(gradients, variables, steps)

    def _reduced_at_the_end(self, gradients: list[Any], variables: list[Any], steps: int) -> list[Any]:
        """Return this pass's own gradients; at the end of a step, the reduced ones of all its passes.

        Keras adds its accumulated gradients to them, so these are subtracted.
        """
        places = [index for index, gradient in enumerate(gradients) if gradient is not None]
        kept = [self._accumulated_gradients[self._get_variable_index(variables[index])] for index in places]  # type: ignore[attr-defined]
        # Keras accumulates gradients in dense variables.
        own = [backends.chosen().dense(gradients[index]) for index in places]

        def at_the_end() -> tuple[list[Any], list[Any]]:
            # Gradients that are None are passed on as well: names are numbered by all gradients, and another rank may
            # have one that is missing here.
            total: list[Any] = [None] * len(gradients)
            for index, gradient, before in zip(places, own, kept, strict=True):
                total[index] = gradient + before
            reduced = self._farandole.reduce(total, variables)
            return [reduced[index] for index in places], [ops.zeros_like(each) for each in own]

        def before_it() -> tuple[list[Any], list[Any]]:
            return own, [ops.convert_to_tensor(each) for each in kept]

        is_the_end = (self._passes() + 1) % steps == 0
        reduced, remaining = ops.cond(is_the_end, at_the_end, before_it)
        for variable, value in zip(kept, remaining, strict=True):
            variable.assign(value)
        results = list(gradients)
        for index, gradient in zip(places, reduced, strict=True):
            results[index] = gradient
        return results

    def _step_and_combine(self, gradients: list[Any], variables: list[Any], given: list[Any] | None) -> None:
        """Take this rank's own step, and combine the changes of all ranks."""
        before = [ops.copy(variable) for variable in variables]
        self._plain_apply(gradients, given)
        changes = [variable - start for variable, start in zip(variables, before, strict=True)]
        combined = self._farandole.reduce(changes, variables, Adasum)
        for variable, start, change in zip(variables, before, combined, strict=True):
            variable.assign(start + change)

    def _key_of(self, variable: Any) -> Any:
        return self._var_key(variable)  # type: ignore[attr-defined]


class DistributedLossScale(Distributed):
    """The mixin for the optimizer that scales the loss.

    It checks whether all gradients are finite, and all ranks must have the same result: so they are reduced before.
    With Adasum, each rank checks its own gradients and scales its own loss: a skipped step is a change of zero.
    """

    def stateless_apply(self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any) -> Any:
        """Reduce the gradients, and take the wrapped optimizer's step."""
        plain: Any = super()
        variables = self._trainable_variables  # type: ignore[attr-defined]
        if self._farandole_options.op != Adasum or self._farandole_options.is_local():
            reduced = self._farandole.reduce(list(grads), variables)
            return plain.stateless_apply(optimizer_variables, reduced, trainable_variables)
        stepped, state = plain.stateless_apply(optimizer_variables, grads, trainable_variables)
        changes = [after - before for after, before in zip(stepped, trainable_variables, strict=True)]
        combined = self._farandole.reduce(changes, variables, Adasum)
        return [before + change for before, change in zip(trainable_variables, combined, strict=True)], state


# What the backend must not rewrite within functions of the user's.
_OURS = ("apply", "apply_gradients", "_compute_gradients")


def is_distributed(optimizer: Any) -> bool:
    """Return whether an optimizer reduces gradients."""
    return isinstance(optimizer, (Distributed, legacy.Distributed))


Wrapped = TypeVar("Wrapped")


def DistributedOptimizer(
    optimizer: Wrapped,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Wrapped:
    """Return an optimizer that does the same as the given one, with gradients reduced over all workers.

    The result is an instance of a subclass of the optimizer's class, under the same name, and begins with a copy of its
    state. A model that is compiled with it is saved with the given optimizer.

    Args:
        optimizer: any optimizer of Keras 3, or of tf_keras.
        name: the name of the result; None: the optimizer's.
        device_dense: ignored: gradients are reduced on their devices.
        device_sparse: ignored.
        compression: the form in which gradients are sent, such as `Compression.bf16`; None: uncompressed.
        sparse_as_dense: whether sparse gradients become dense; else their rows are gathered.
        gradient_predivide_factor: with Average, divide by this before the sum and by size / this after it.
        op: Average or Sum; with Adasum, each rank takes its own step, and the *changes* of the variables are combined.
        backward_passes_per_step: the number of calls of `apply` whose gradients each rank sums before one reduction;
            the same as Keras' `gradient_accumulation_steps`, which may be set on the optimizer instead.
        average_aggregated_gradients: whether these gradients are averaged instead of summed.
        num_groups: deprecated; pass the number as `groups`.
        groups: the number of groups of neighbours, or lists of variables, whose gradients are reduced together.
        process_set: the ranks that reduce; on others the optimizer is local.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks.

    Raises:
        ValueError: an argument is not valid, or init() has not been called.

    Example:
        >>> optimizer = keras.optimizers.Adam(0.001 * hvd.size())
        >>> model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss="mse")
    """
    options = checked(
        "DistributedOptimizer",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    if is_distributed(optimizer) or is_distributed(getattr(optimizer, "inner_optimizer", None)):
        raise InvalidRequestError("this optimizer is a DistributedOptimizer already; wrap the original one, once.")
    if op == Adasum and options.passes > 1:
        raise InvalidRequestError("Adasum takes a step in each backward pass: backward_passes_per_step is 1 with it.")
    if legacy.is_optimizer(optimizer):
        return legacy.distributed(optimizer, options, name)
    if isinstance(optimizer, str):
        raise InvalidRequestError(
            f"expected an optimizer of Keras, got a name (type str). Pass keras.optimizers.get({optimizer!r}), which "
            "makes the optimizer of that name."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidRequestError(
            f"expected an optimizer of Keras, got type {_type_name(optimizer)}. For optimizers of tf.compat.v1.train "
            "use farandole.tensorflow.DistributedOptimizer; for those of PyTorch, that of farandole.torch."
        )
    backends.chosen().check_scope()
    config = optimizer.get_config()
    if name is not None:
        config["name"] = name
    if options.passes > 1:
        _check_passes(config, optimizer)
    return _wrapped(optimizer, options, config)


def PartialDistributedOptimizer(optimizer: Wrapped, *args: Any, local_layers: Any = None, **kwargs: Any) -> Wrapped:
    """Return a `DistributedOptimizer` that does not reduce the gradients of some layers.

    Args:
        optimizer: the optimizer to wrap.
        args: further arguments of `DistributedOptimizer`.
        local_layers: a layer, or several.
        kwargs: further arguments of `DistributedOptimizer`, by name.

    Raises:
        ValueError: `local_layers` are not layers, or `DistributedOptimizer` raises it.
    """
    layers = checked_layers(local_layers)
    distributed = DistributedOptimizer(optimizer, *args, **kwargs)
    front: Any = distributed
    front._farandole.register_local_layers(layers)
    return distributed


def _wrapped(optimizer: Any, options: WrapperOptions, config: dict[str, Any]) -> Any:
    """Return a distributed copy of an optimizer with its configuration."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        config["inner_optimizer"] = _copy(type(optimizer.inner_optimizer), optimizer.inner_optimizer)
        made = distributed_class(type(optimizer), options)(**config)
    else:
        made = _made(distributed_class(type(optimizer), options), optimizer, config)
        if options.passes > 1:
            # Set as an attribute and not by the configuration, because an optimizer of the user's may lack this
            # argument.
            made.gradient_accumulation_steps = options.passes
    return _with_state(made, optimizer)


def _unpickled(saved: Any, options: WrapperOptions) -> Any:
    plain = keras.optimizers.Optimizer._unpickle_model(saved)
    return _wrapped(plain, options, plain.get_config())


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _check_passes(config: dict[str, Any], optimizer: Any) -> None:
    if config.get("gradient_accumulation_steps"):
        raise InvalidRequestError(
            "the optimizer has gradient_accumulation_steps, and backward_passes_per_step was passed: both mean the "
            "same, so omit one of them."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise InvalidRequestError(
            "backward_passes_per_step cannot be used with LossScaleOptimizer: set gradient_accumulation_steps on its "
            "inner optimizer."
        )


def _take_over(scaling: Any) -> None:
    """Make a loss-scale optimizer around a distributed one reduce the gradients in its place."""
    inner = scaling.inner_optimizer
    object.__setattr__(scaling, "__class__", distributed_class(type(scaling), inner._farandole_options))
    scaling._farandole = inner._farandole.handed_over()


def distributed_class(original: type, options: WrapperOptions) -> type:
    """Return a subclass, under the same name, whose instances reduce gradients with the given options."""
    front = DistributedLossScale if issubclass(original, keras.optimizers.LossScaleOptimizer) else Distributed
    made = type(original)(
        original.__name__,
        (front, original),
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            **{name: backends.chosen().as_it_is(getattr(front, name)) for name in _OURS},
            **_counting_calls(original),
            "_farandole_options": options,
        },
    )
    saved_classes.save_as(made, original)
    return made


def _counting_calls(original: type) -> dict[str, Any]:
    """Return the attribute `iterations`, which counts calls with `backward_passes_per_step`, as Horovod's does."""
    plain = inspect.getattr_static(original, "iterations", None)
    if not isinstance(plain, property):
        return {}  # In older versions of Keras it is a variable, which counts calls.

    def iterations(optimizer: Any) -> Any:
        if optimizer._farandole_options.passes > 1 and not optimizer._farandole_in_step:
            return optimizer._passes()
        return plain.__get__(optimizer)

    return {"iterations": property(iterations, doc=plain.__doc__)}


def _copy(cls: type, optimizer: Any) -> Any:
    return _with_state(_made(cls, optimizer, optimizer.get_config()), optimizer)


def _made(cls: Any, optimizer: Any, config: dict[str, Any]) -> Any:
    rate = optimizer._learning_rate
    if callable(rate) and not isinstance(rate, keras.Variable):
        config["learning_rate"] = rate  # A schedule has no state, and a function may have no config.
    try:
        return cls.from_config(config)
    except TypeError as error:
        raise InvalidRequestError(
            f"{cls.__name__} cannot be recreated from its configuration ({error}). Its get_config() must return all "
            "arguments of its __init__, which Keras also needs to load saved models."
        ) from error


def _with_state(made: Any, optimizer: Any) -> Any:
    """Copy the state of another optimizer of the same class to an optimizer, and return it."""
    for each in ("", "_pattern", "_cache"):
        attribute = f"_exclude_from_weight_decay{each}"
        if hasattr(optimizer, attribute):
            setattr(made, attribute, getattr(optimizer, attribute))
    if optimizer.built and not made.built:
        made.build(list(optimizer._trainable_variables))
    own, theirs = made.variables, optimizer.variables
    # An optimizer that accumulates has variables for it, which the other one may not have.
    values = {variable.path: variable for variable in theirs} if len(own) != len(theirs) else {}
    for place, variable in enumerate(own):
        source = values.get(variable.path) if values else theirs[place]
        if source is not None:
            variable.assign(source)
    return made


# When this is imported: of `model.compile(DistributedOptimizer(...))`, Python looks `compile` up before it makes the
# optimizer.
keras_hooks.install(is_distributed, _take_over)
