"""The gradients of ops, as `farandole.worker.collectives` declares them for all front ends.

Each consists of collectives itself, so all ranks must compute it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Options
from farandole.worker.collectives.differentiation import Outcome
from farandole.worker.collectives.gradient_rules import CallFacts

# From collective, form, tensors, options and name.
Run = Callable[[Collective, Form, Sequence[Any], Options, str | None], Outcome]


def input_options(options: Options) -> Mapping[str, Any]:
    """Return the options that are tensors, and so inputs of an op, by name."""
    return {option: value for option, value in options.items() if tf.is_tensor(value)}


class Members(NamedTuple):
    """The ranks that took part in a call. Each function makes an op that returns an int32 when it runs: a graph that
    was traced in one world may run in another.
    """

    size: Callable[[], Any]
    """The number of these ranks."""
    position: Callable[[], Any]
    """The index of this rank among them."""
    rank: Callable[[], Any]
    """This rank in the world."""


class Differentiable:
    """A call of a collective whose gradients are computed; an implementation of `Maths` for gradient rules."""

    def __init__(
        self,
        collective: Collective,
        options: Options,
        members: Members,
        inputs: Sequence[Any],
        counts: Sequence[Any],
        run: Run,
    ) -> None:
        """Create the object for a call that was made.

        Args:
            collective: the collective that was called.
            options: the settled options.
            members: the ranks that took part.
            inputs: the inputs of the call.
            counts: for each output, the number of rows from each rank, if the collective returns it.
            run: a function that runs another collective, among the same ranks.
        """
        self._collective = collective
        self._options = options
        self._members = members
        self._inputs = inputs
        self._counts = counts
        self._run = run

    def gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of the inputs, from those of the outputs."""
        rule = self._collective.gradient
        # TensorFlow may give zeros of float32 for results that are not used, and passes on `output_gradients` in
        # whatever type the user has.
        pairs = zip(gradients, self._inputs, strict=True)
        given = [tf.cast(tf.convert_to_tensor(gradient), tensor.dtype) for gradient, tensor in pairs]
        if self._collective.receives_rows:
            shapes: list[Any] = [tf.shape(tensor) for tensor in self._inputs]
        else:
            shapes = [tensor.shape for tensor in self._inputs]
        facts = CallFacts(self._options, self._members.size, self._members.position, shapes, self._counts)
        if rule.needs_inputs(self._options):
            assert rule.program is not None
            return list(rule.program(self, facts, list(self._inputs), given))
        plan = rule.plan(facts)
        begun = [plan.before.apply(self, gradient) for gradient in given]
        through = self._through(plan.collective, dict(plan.options), begun)
        return [local.apply(self, gradient) for local, gradient in zip(plan.locals, through, strict=True)]

    def _through(self, name: str, options: Options, tensors: Sequence[Any]) -> Sequence[Any]:
        collective, form = COLLECTIVES[name], PLAIN if len(tensors) == 1 else Form(grouped=True)
        return self._run(collective, form, tensors, options, call_name(None, collective, form, tensors)).outputs

    # --- as `farandole.worker.collectives.gradient_rules.Maths` --------------------------------------------------

    def reduce(self, tensors: Sequence[Any], op: int) -> Sequence[Any]:
        """Reduce tensors over the ranks of the call."""
        return self._through("allreduce", {"op": op, "prescale": 1.0, "postscale": 1.0}, tensors)

    def equal(self, tensor: Any, other: Any) -> Any:
        """Return 1 where the two are equal and 0 elsewhere."""
        return tf.cast(tf.equal(tensor, tf.cast(other, tensor.dtype)), tensor.dtype)

    def where(self, flags: Any, then: Any, otherwise: Any) -> Any:
        """Return `then` where flags are not 0, and `otherwise` elsewhere."""
        return tf.where(tf.not_equal(flags, 0), tf.cast(then, flags.dtype), tf.cast(otherwise, flags.dtype))

    def scaled(self, tensor: Any, factor: float, ranks: Any) -> Any:
        """Return the tensor times a factor and times a number of ranks."""
        if tf.is_tensor(ranks):
            return tensor * tf.cast(factor * tf.cast(ranks, tf.float64), tensor.dtype)
        return tensor if factor * ranks == 1.0 else tensor * (factor * ranks)

    def only_at(self, tensor: Any, rank: int) -> Any:
        """Return the tensor on one rank, and zeros on the others.

        The choice is made when the op runs: if TensorFlow knew that this rank does not use the result, it would remove
        the collective, for which the others wait.
        """
        return tf.where(tf.equal(self._members.rank(), rank), tensor, tf.zeros_like(tensor))

    def rows_of(self, tensor: Any, counts: Any, position: int) -> Any:
        """Return the rows of one of the parts that are concatenated in the tensor."""
        begin = tf.reduce_sum(counts[:position])
        return tensor[begin : begin + counts[position]]

    def padded(self, tensor: Any, rows: Any) -> Any:
        """Return the tensor with rows of zeros appended."""
        return self.with_zero_rows(tensor, 0, rows - tf.shape(tensor)[0])

    def product_of_rows(self, tensor: Any) -> Any:
        """Return the product over the first dimension."""
        return tf.reduce_prod(tensor, 0)

    def with_zero_rows(self, tensor: Any, before: Any, after: Any) -> Any:
        """Return the tensor with rows of zeros before and after it."""
        zeros = [tf.zeros(tf.concat([[count], tf.shape(tensor)[1:]], 0), tensor.dtype) for count in (before, after)]
        return tf.concat([zeros[0], tensor, zeros[1]], 0)


def call_name(name: str | None, collective: Collective, form: Form, tensors: Sequence[Any]) -> str | None:
    """Return the name of a call: the user's or, in a graph, one derived from the tensors' names; otherwise None."""
    if name is not None or tf.executing_eagerly():
        return name
    ends = [tensors[0], tensors[-1]] if form.grouped else [tensors[0]]
    names = (re.sub(r"[^a-zA-Z0-9_]", "_", tensor.name) for tensor in ends)
    return "_".join([f"Horovod{'Grouped' * form.grouped}{collective.name.capitalize()}", *names])
