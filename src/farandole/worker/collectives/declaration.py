"""The declaration of a collective, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from farandole.base.request_kind import Kind, Rows
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import GradientRule
from farandole.worker.collectives.rows import own_rows
from farandole.worker.core.dtype import ElementType, OpaqueType
from farandole.worker.core.request_options import NativeOptions, reader_of

# A tensor of any framework. All of them have `shape`.
Tensor = Any
# The options of a call, by the names of the request's options, once `Collective.settle` has completed them.
Options = dict[str, Any]


class Required:
    """The placeholder for the default of a required argument."""


@dataclass(frozen=True)
class Parameter:
    """An argument of a collective.

    Attributes:
        name: the name of the argument.
        annotation: its type. `{Tensor}` stands for the front end's type of tensors.
        default: `Required`, or the value. The defaults of `compression` and `process_set` are set by the front end and
            the core.
        meaning: its text in the docstring. `{tensor}` stands for the front end's word for a tensor.
        option: the option of the request that takes the value; None: `Collective.settle` or `Collective.fields` uses
            it.
        plain_only: whether only the plain forms have it, which neither overwrite their input nor return early.
    """

    name: str
    annotation: str
    default: Any
    meaning: str
    option: str | None = None
    plain_only: bool = False


class Form(NamedTuple):
    """One of the functions of a collective."""

    grouped: bool = False
    """Whether it takes several tensors, which are sent together."""
    in_place: bool = False
    """Whether the result overwrites the input."""
    later: bool = False
    """Whether it returns a handle at once; `synchronize` returns the result."""

    def function(self, collective: str) -> str:
        """Return the function's name.

        Example:
            >>> Form(grouped=True, in_place=True, later=True).function("allreduce")
            'grouped_allreduce_async_'
        """
        return f"{self.operation(collective)}{'_async' * self.later}{'_' * self.in_place}"

    def operation(self, collective: str) -> str:
        """Return the prefix of the names by which ranks' calls match."""
        return f"{'grouped_' * self.grouped}{collective}"


PLAIN = Form()
FORMS = tuple(
    Form(grouped, in_place, later) for grouped in (False, True) for in_place in (False, True) for later in (False, True)
)


class Order(NamedTuple):
    """The order in which Horovod's functions of a framework take their arguments; names, separated by spaces."""

    plain: str
    """The arguments of the plain function, except the tensor."""
    grouped: str = ""
    """The order of the grouped function, if it differs."""


class Received(NamedTuple):
    """Received rows, in rank order."""

    rows: Tensor
    counts: tuple[int, ...]
    """The number of rows from each rank."""


def _nothing_but_options(front: Framework, options: Options, shape: Sequence[int], size: int) -> Options:
    return options


@dataclass(frozen=True)
class Collective:
    """One collective.

    Attributes:
        kind: the engine's kind of request, from which the names of the functions follow.
        summary: a description in imperative sentences.
        differentiable: the docstring's text about the gradient.
        parameters: all arguments except the tensor, in order.
        gradient: the rule that computes the gradient of the inputs from that of the outputs.
        check: the part of `check_member` for a tensor whose type the collective can have.
        check_options: a part of `check` that raises ValueError for options that are not valid for any tensor.
        settle: converts a call's options, in place, to the form that `check` and `gradient` expect.
        fields: a function from (front end, options, shape, size of the set) to the arguments of `make_request`.
        returns: a function from (front end, Received, options) to the result that a plain call returns to the user.
        returns_later: the same for an asynchronous call.
        has_grouped: whether there are forms for several tensors.
        has_in_place: whether there are forms that overwrite the input. The result then has the input's shape.
        before_world: whether a newcomer may call it alone, before it is in a world.
        returned: the docstring's text about the result, if the summary does not describe it.
        horovod: for each framework, the order of arguments of Horovod's function, if it differs from that of
            `parameters`; None for a framework that does not have this collective.
    """

    kind: Kind
    summary: str
    differentiable: str
    parameters: tuple[Parameter, ...]
    gradient: GradientRule
    check: Callable[[Framework, Tensor, ElementType, str, Options], None]
    check_options: Callable[[Options], None] = lambda options: None
    settle: Callable[[Options], None] = lambda options: None
    fields: Callable[[Framework, Options, Sequence[int], int], Options] = _nothing_but_options
    returns: Callable[[Framework, Received, Options], Any] | None = None
    returns_later: Callable[[Framework, Received, Options], Any] | None = None
    has_grouped: bool = False
    has_in_place: bool = False
    before_world: bool = False
    returned: str = ""
    horovod: Mapping[str, Order | None] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Return the name of its plain function, from which those of the other forms are derived (`Form.function`)."""
        return self.kind.function

    @cached_property
    def reduces(self) -> bool:
        """Whether it calculates with the elements; other collectives move them as they are."""
        return self.kind.reduces

    @cached_property
    def rows(self) -> Rows:
        """The rows of the result, whose other dimensions and element type are those of the input."""
        assert self.kind.rows is not None
        return self.kind.rows

    @cached_property
    def receives_rows(self) -> bool:
        """Whether the number of the result's rows is learnt while they move. The result then is a `Received`."""
        return self.rows in (Rows.GATHERED, Rows.EXCHANGED)

    @cached_property
    def is_quick(self) -> bool:
        """Whether its requests can overwrite earlier ones; see `farandole.worker.core.submission.Single`."""
        return self.fields is _nothing_but_options

    @cached_property
    def native_options(self) -> Callable[[Options], NativeOptions]:
        """A function from settled options to those of the request."""
        return reader_of(tuple(each.option for each in self.parameters if each.option))

    def check_member(self, front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
        """Raise ValueError if the collective does not support a tensor.

        Args:
            front: the front end that the tensor belongs to.
            tensor: the input.
            dtype: its element type.
            name: the full name of the call.
            options: the call's options, with all defaults filled in.
        """
        if isinstance(dtype, OpaqueType) and self.reduces:
            raise InvalidRequestError(
                f"Tensor type {front.type_name(tensor)} is not supported in {self.name}, which calculates with the "
                f"elements. {front.instead_of(tensor)}"
            )
        self.check(front, tensor, dtype, name, options)

    def forms(self) -> tuple[Form, ...]:
        """Return the forms of this collective."""
        return tuple(form for form in FORMS if form.grouped <= self.has_grouped and form.in_place <= self.has_in_place)

    def parameters_of(self, form: Form) -> tuple[Parameter, ...]:
        """Return the arguments of a form, except the tensor."""
        return tuple(each for each in self.parameters if not each.plain_only or not (form.in_place or form.later))

    def result_shape(self, shape: Sequence[int], size: int, position: int) -> tuple[int | None, ...]:
        """Return the shape of the result.

        Args:
            shape: the shape of the input.
            size: the number of ranks that take part.
            position: the index among them of the rank whose result it is.

        Returns:
            The shape, with None for a dimension that is known only when the call is done.
        """
        if self.rows is Rows.SAME:
            return tuple(shape)
        first = own_rows(shape[0], size, position) if self.rows is Rows.SHARED else None
        return (first, *shape[1:])


# --- arguments that several collectives have ---------------------------------------------------------------------

NAME = Parameter("name", "str | None", None, "ranks' calls match by name; unnamed calls match by their order.")
PROCESS_SET = Parameter("process_set", "ProcessSet", Required, "the ranks that take part.")
COMPRESSION = Parameter(
    "compression",
    "Any",
    Required,
    "the compression of the {tensor}, such as `Compression.fp16`.",
    plain_only=True,
)
PRESCALE = Parameter("prescale_factor", "float", 1.0, "multiplied in before the reduction.", "prescale")
POSTSCALE = Parameter("postscale_factor", "float", 1.0, "multiplied in after it.", "postscale")
