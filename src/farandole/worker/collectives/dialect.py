"""The differences between front ends' functions: which functions there are, their arguments, and docstrings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import Collective, Form, Parameter


class Dialect:
    """The facts about a front end that `render` needs.

    Attributes:
        framework: the name by which declarations list Horovod's order of arguments; "": the order of declarations.
        noun: the framework's word for a tensor.
        argument: the name of the first argument of a function of one tensor.
        several: the argument of the grouped functions, for docstrings.
        requirement: the condition that a tensor must meet, for docstrings.
        failure: the error with which a call ends if ranks do not agree or a worker is lost, for docstrings.
        has_gradients: whether gradients can flow through collectives.
        has_grouped: whether there are functions for several tensors.
        has_in_place: whether a tensor can be overwritten.
        has_later: whether there are functions that return a handle for `synchronize`.
        no_compression: the default of `compression=`.
        further: arguments that only this front end has. A function has those in Horovod's order; for a collective
            without such an order, those in `everywhere`. They are passed to the runner by name.
        everywhere: names of further arguments that such collectives have.
    """

    framework = ""
    noun = "tensor"
    argument = "tensor"
    several = "several {tensor}s together"
    requirement: str
    failure = "HorovodInternalError: the ranks' {tensor}s do not fit together, or a worker was lost."
    has_gradients = False
    has_grouped = True
    has_in_place = True
    has_later = True
    no_compression: Any
    further: tuple[Parameter, ...] = ()
    everywhere: tuple[str, ...] = ()

    def functions(self) -> Iterator[tuple[Collective, Form]]:
        """Yield each function as a collective and a form."""
        for collective in COLLECTIVES.values():
            if collective.horovod.get(self.framework, ()) is None:
                continue
            for form in collective.forms():
                if (
                    form.grouped <= self.has_grouped
                    and form.in_place <= self.has_in_place
                    and form.later <= self.has_later
                ):
                    yield collective, form

    def parameters_of(self, collective: Collective, form: Form) -> tuple[Parameter, ...]:
        """Return the arguments of a function, except the tensor, in their order."""
        known = {each.name: each for each in (*collective.parameters_of(form), *self.further)}
        order = collective.horovod.get(self.framework)
        if order is None:
            return (*collective.parameters_of(form), *(known[name] for name in self.everywhere))
        names = (form.grouped and order.grouped) or order.plain
        return tuple(known[name] for name in names.split() if name in known)
