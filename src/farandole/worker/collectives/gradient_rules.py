"""The gradients of collectives, as data.

The gradient of a collective is again a collective, of the outputs' gradients, with local arithmetic before and after
it. A rule is a pure function from the facts about a call (`CallFacts`) to a `Plan` of these. Non-linear reductions also
need the inputs: their rule is a program over `Maths`, the front end's operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Tensor = Any


class CallFacts(NamedTuple):
    """The facts about a call that its gradient needs."""

    options: Mapping[str, Any]
    """The options that `Collective.settle` returns, by the names of the request's options."""
    size: Callable[[], Any]
    """The number of ranks that took part. In a graph, which may outlive a world, it is a tensor."""
    position: Callable[[], Any]
    """This rank's index among them; in a graph, a tensor."""
    shapes: Sequence[Sequence[int]]
    """The shapes of the inputs."""
    received: Sequence[Sequence[int]]
    """For each input, the number of rows from each rank; empty if the collective does not return it."""


# --- arithmetic on each rank before and after the collective ----------------------------------------------------


class Local(Protocol):
    """Arithmetic on one gradient."""

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return the result for this gradient."""


@dataclass(frozen=True)
class Nothing:
    """Return the gradient unchanged."""

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return the gradient."""
        return gradient


@dataclass(frozen=True)
class Scale:
    """Multiply the gradient by a factor and by a number of ranks."""

    factor: float
    ranks: Any = 1
    """The number of ranks: a number, or the value of `CallFacts.size`."""

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return the product."""
        return maths.scaled(gradient, self.factor, self.ranks)


@dataclass(frozen=True)
class TakeRows:
    """Take one rank's rows of the gradient."""

    counts: Sequence[int]
    """The number of rows that belong to each rank, in rank order."""
    position: Any
    """The position of the rank, as `CallFacts.position` returns it."""

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return these rows."""
        return maths.rows_of(gradient, self.counts, self.position)


@dataclass(frozen=True)
class PadRows:
    """Add rows of zeros until the gradient has this number of rows."""

    rows: int

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return the gradient with these rows."""
        return maths.padded(gradient, self.rows)


@dataclass(frozen=True)
class OnlyAt:
    """Make the gradient zero on all ranks except one."""

    rank: int
    """The rank in the world."""

    def apply(self, maths: Maths, gradient: Tensor) -> Tensor:
        """Return the gradient or zeros."""
        return maths.only_at(gradient, self.rank)


# --- rules -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The computation of the gradients of a call's inputs from those of its outputs.

    Attributes:
        collective: the collective of all gradients, together if there are several, in the call's process set.
        options: the options of that collective, by the names of the request's options.
        locals: for each gradient, the arithmetic on this rank after the collective.
        before: the arithmetic on this rank with every gradient of an output, before the collective.
    """

    collective: str
    options: Mapping[str, Any] = field(default_factory=dict)
    locals: Sequence[Local] = ()
    before: Local = field(default_factory=Nothing)


class Maths(Protocol):
    """The operations that rules need from a front end, besides the operators `+ - * /` and slices of tensors, including
    `None`.

    All of them can be differentiated, except comparisons.
    """

    def reduce(self, tensors: Sequence[Tensor], op: int) -> Sequence[Tensor]:
        """Reduce tensors over the ranks of the call."""

    def equal(self, tensor: Tensor, other: Tensor | float) -> Tensor:
        """Return 1 where the two are equal and 0 elsewhere, of the type of `tensor`."""

    def where(self, flags: Tensor, then: Tensor | float, otherwise: Tensor | float) -> Tensor:
        """Return `then` where flags are not 0, and `otherwise` elsewhere."""

    def scaled(self, tensor: Tensor, factor: float, ranks: Any) -> Tensor:
        """Return the tensor times a factor and times a number of ranks, which in a graph is a tensor."""

    def only_at(self, tensor: Tensor, rank: int) -> Tensor:
        """Return the tensor on this rank of the world, and on the others zeros that depend on it.

        The graph of the gradient is then the same on all ranks, and the gradient of the gradient makes the same
        collectives on all of them.
        """

    def rows_of(self, tensor: Tensor, counts: Sequence[int], position: int) -> Tensor:
        """Return the rows of one of the parts that are concatenated in the tensor.

        Args:
            tensor: the tensor with all parts.
            counts: the number of rows of each part.
            position: the index of the part.
        """

    def padded(self, tensor: Tensor, rows: int) -> Tensor:
        """Return the tensor with rows of zeros appended, so that it has `rows` rows."""

    def product_of_rows(self, tensor: Tensor) -> Tensor:
        """Return the product over the first dimension, all ones if there are no rows."""

    def with_zero_rows(self, tensor: Tensor, before: int, after: int) -> Tensor:
        """Return the tensor with rows of zeros before and after it."""


Program = Callable[[Maths, CallFacts, Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class GradientRule:
    """The gradient of a collective.

    Attributes:
        plan: a function from the facts of a call to its gradient's plan.
        program: a function from (maths, facts, inputs, outputs' gradients) to the inputs' gradients, for calls without
            a plan.
        needs_inputs: a function of the options that returns whether a call's gradient is the program's.
    """

    plan: Callable[[CallFacts], Plan]
    program: Program | None = None
    needs_inputs: Callable[[Mapping[str, Any]], bool] = lambda options: False
