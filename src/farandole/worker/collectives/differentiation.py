"""A call through which gradients flow: a front end runs it, and it returns the gradients of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Options, Tensor
from farandole.worker.collectives.gradient_rules import CallFacts, Maths, Plan
from farandole.worker.core.group import ProcessSet

# Calls a collective through which gradients flow, and returns its outputs: with the collective, its form, the tensors,
# the name, the process set and the options.
DifferentiableOutputs = Callable[
    [Collective, Form, Sequence[Tensor], "str | None", ProcessSet, Options], Sequence[Tensor]
]


class Outcome(NamedTuple):
    """The outcome of a call."""

    outputs: Sequence[Tensor]
    received: Sequence[Sequence[int]]
    """For each output, the number of rows from each rank, if the collective returns it."""


class DifferentiableCall:
    """One call. A front end calls `run` in the forward pass and `gradients` in the backward pass.

    Attributes:
        collective: the collective that is called.
        form: the form of the collective that was called.
        name: the user's name of the call, or None.
        process_set: the ranks that take part.
        options: the settled options.
        compression: the compression, if it is a recipe; else None.
        received: the number of rows from each rank, from the outcome.
        needs_inputs: whether `gradients` needs the inputs.
    """

    def __init__(
        self,
        outputs: DifferentiableOutputs,
        collective: Collective,
        form: Form,
        name: str | None,
        process_set: ProcessSet,
        options: Options,
        run: Callable[[Sequence[Tensor]], Outcome],
        compression: Any = None,
    ) -> None:
        """Create a call, without running it.

        Args:
            outputs: a function that calls the collectives through which the gradients go.
            collective: the collective that is called.
            form: the form of the collective that was called.
            name: the user's name of the call, or None.
            process_set: the ranks that take part.
            options: the settled options.
            run: a function that carries out the call.
            compression: the compression, if it is a recipe; else None.
        """
        self._outputs = outputs
        self._rule = collective.gradient
        self.collective = collective
        self.form = form
        self.name = name
        self.process_set = process_set
        self.options = options
        self.compression = compression
        self._run = run
        self._shapes: Sequence[Sequence[int]] = ()
        self.received: Sequence[Sequence[int]] = ()
        self.needs_inputs = self._rule.needs_inputs(options)

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Carry out the call, and return its outputs."""
        outcome = self._run(tensors)
        self._shapes, self.received = [tensor.shape for tensor in tensors], outcome.received
        return tuple(outcome.outputs)

    def reduce(self, tensors: Sequence[Tensor], op: int) -> Sequence[Tensor]:
        """Reduce tensors over the ranks of the call, as `Maths` describes."""
        plan = Plan("allreduce", {"op": op, "prescale": 1.0, "postscale": 1.0})
        return self._through(plan, tensors)

    def gradients(self, maths: Maths, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of the inputs.

        Args:
            maths: the front end's operations on tensors.
            inputs: the inputs of the call, if the rule needs them.
            gradients: the gradients of the outputs.
        """
        facts = CallFacts(self.options, self.process_set.size, self.process_set.rank, self._shapes, self.received)
        if self.needs_inputs:
            assert self._rule.program is not None
            return self._rule.program(maths, facts, inputs, gradients)
        plan = self._rule.plan(facts)
        through = self._through(plan, [plan.before.apply(maths, gradient) for gradient in gradients])
        return [local.apply(maths, gradient) for local, gradient in zip(plan.locals, through, strict=True)]

    def _through(self, plan: Plan, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        form = PLAIN if len(gradients) == 1 else Form(grouped=True)
        # A part of the graph in any case, for tensors that are wrapped by a transform of the front end.
        return self._outputs(COLLECTIVES[plan.collective], form, gradients, None, self.process_set, dict(plan.options))
