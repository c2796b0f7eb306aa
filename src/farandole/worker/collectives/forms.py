"""Carrying out the forms of the collectives: plain, asynchronous, in place and grouped.

A call is waited for at once (`now`, or `now_in_place` if it overwrites its inputs) or by its handle (`later`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from farandole.worker.collectives.arguments import several
from farandole.worker.collectives.calls import call_of_one, call_of_several, member_names
from farandole.worker.collectives.compressed import check_compressed_call, compressed_call
from farandole.worker.collectives.compression import Feedback, Recipe
from farandole.worker.collectives.declaration import PLAIN, Collective, Form, Options, Received, Tensor
from farandole.worker.collectives.differentiation import DifferentiableCall, Outcome
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.collectives.repeats import Repeats, repeats
from farandole.worker.core.basics import current
from farandole.worker.core.group import ProcessSet
from farandole.worker.core.handle import Call, HandleTable
from farandole.worker.core.session import Session

# The function that a rendered function calls, with the tensor or tensors, name, process set and options, and the
# compression if it has one.
Runner = Callable[..., Any]


def poll(handle: int) -> bool:
    """Return whether an asynchronous call is done, so that `synchronize` would not wait.

    Raises:
        ValueError: there is no such handle, or it was already synchronized.
    """
    return current().handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous call and return its output; None if the handle is unknown or was already synchronized.

    Raises:
        HorovodInternalError: the call failed on all ranks.
    """
    return current().handles.synchronize(handle)


class Forms:
    """The collectives of one front end."""

    def __init__(self, front: FrontEnd[Tensor]) -> None:
        """Create the object for a front end."""
        self.front = front
        # The calls whose names recur if they have none: those that submit all their requests at once.
        self._recurring = (call_of_one, call_of_several) if front.submits_in_order else ()
        self.now = front.outside_graphs(self._carry_out(HandleTable.run))
        self._now_in_place = front.outside_graphs(self._in_place)
        self._later: Callable[..., int] = front.outside_graphs(self._carry_out(HandleTable.begin))

    def _carry_out(self, how: Callable[[HandleTable, Call], Any]) -> Callable[..., Any]:
        """Return a function that makes calls as `Session.carry_out` does, in the front end's scope."""
        scope, waits, recurs_for = self.front.scope, how is HandleTable.run, self._recurring

        def carry_out(
            operation: str, name: str | None, process_set: ProcessSet, make: Callable[..., Call], *details: Any
        ) -> Any:
            session, recurs = current(), make in recurs_for
            if waits and session.retry is not None:
                return session.carry_out(how, operation, name, process_set, make, *details, scope=scope, recurs=recurs)
            # Every small tensor comes here, so one call is saved.
            return session.carry_out_once(how, operation, name, process_set, make, *details, scope=scope, recurs=recurs)

        return carry_out

    # --- what users call -----------------------------------------------------------------------------------------

    def runner(self, collective: Collective, form: Form) -> Runner:
        """Return the function that carries out a form of a collective."""
        if form.later:
            run = self._later_runner(collective, form)
        elif form.in_place:
            run = self._in_place_runner(collective, form)
        else:
            run = self._grouped_runner(collective) if form.grouped else self._plain_runner(collective)
        return run if form.grouped or not repeats(collective) else Repeats(self.front, collective, form, run).run

    def _plain_runner(self, collective: Collective) -> Runner:
        front, settle, returns = self.front, collective.settle, collective.returns
        none, converts = front.no_compression, front.converts
        now, make, operation = self.now, call_of_one, collective.name

        def run(
            tensor: Any, name: str | None, process_set: ProcessSet, options: Options, compression: Any = none
        ) -> Any:
            settle(options)
            if converts:
                tensor = front.accept(tensor, False)
            if compression is none:
                if not front.is_tracked(
                    tensor
                ):  # Every small tensor comes here, so there are as few calls as possible.
                    return now(
                        operation, name, process_set, make, front, collective, tensor, False, options, process_set
                    )
                (output,) = self.outputs(collective, PLAIN, [tensor], name, process_set, options)
                return output
            if isinstance(compression, (Recipe, Feedback)):
                (output,) = self._compressed(collective, PLAIN, compression, [tensor], name, process_set, options)
                return output
            compressed, context = compression.compress(tensor)
            (output,) = self.outputs(collective, PLAIN, [compressed], name, process_set, options)
            return compression.decompress(output, context)

        if returns is None:
            return run

        def run_and_take(tensor: Any, name: str | None, process_set: ProcessSet, options: Options) -> Any:
            settle(options)
            tensor = front.accept(tensor, False)
            return returns(front, self.received(collective, tensor, name, process_set, options), options)

        return run_and_take

    def _grouped_runner(self, collective: Collective) -> Runner:
        front, settle = self.front, collective.settle
        none, form = front.no_compression, Form(grouped=True)
        function = form.function(collective.name)

        def run(
            tensors: Any, name: str | None, process_set: ProcessSet, options: Options, compression: Any = none
        ) -> Any:
            settle(options)
            tensors, together = front.spread(tensors)
            tensors = self._accepted(function, tensors, False)
            if isinstance(compression, (Recipe, Feedback)):
                return together(self._compressed(collective, form, compression, tensors, name, process_set, options))
            if compression is none:
                return together(self.outputs(collective, form, tensors, name, process_set, options))
            pairs = [compression.compress(tensor) for tensor in tensors]
            outputs = self.outputs(collective, form, [tensor for tensor, _ in pairs], name, process_set, options)
            return together(
                [compression.decompress(output, context) for output, (_, context) in zip(outputs, pairs, strict=True)]
            )

        return run

    def _in_place_runner(self, collective: Collective, form: Form) -> Runner:
        front, settle, operation = self.front, collective.settle, form.operation(collective.name)
        converts, now_in_place = front.converts, self._now_in_place
        function = form.function(collective.name)

        def run(tensor: Any, name: str | None, process_set: ProcessSet, options: Options) -> Any:
            settle(options)
            if converts:
                tensor = front.accept(tensor, True)
            return now_in_place(
                (tensor,),
                operation,
                name,
                process_set,
                call_of_one,
                front,
                collective,
                tensor,
                True,
                options,
                process_set,
            )

        def run_grouped(tensors: Any, name: str | None, process_set: ProcessSet, options: Options) -> Any:
            settle(options)
            tensors = self._accepted(function, tensors, True)
            call = front, collective, tensors, True, options, process_set
            return self._now_in_place(tensors, operation, name, process_set, call_of_several, *call)

        return run_grouped if form.grouped else run

    def _later_runner(self, collective: Collective, form: Form) -> Runner:
        front, settle, in_place = self.front, collective.settle, form.in_place
        operation, returns = form.operation(collective.name), collective.returns_later
        converts, later = front.converts, self._later
        function = form.function(collective.name)

        def begin(tensor: Any, name: str | None, process_set: ProcessSet, options: Options) -> int:
            settle(options)
            if converts:
                tensor = front.accept(tensor, in_place)
            call = front, collective, tensor, in_place, options, process_set
            if returns is None:
                return later(operation, name, process_set, call_of_one, *call)
            return later(operation, name, process_set, call_of_one, *call, taking(options))

        def begin_grouped(tensors: Any, name: str | None, process_set: ProcessSet, options: Options) -> int:
            settle(options)
            tensors = self._accepted(function, tensors, in_place)
            call = front, collective, tensors, in_place, options, process_set
            return self._later(operation, name, process_set, call_of_several, *call, taking(options))

        def taking(options: Options) -> Callable[[Received], Any] | None:
            return None if returns is None else lambda received: returns(front, received, options)

        return begin_grouped if form.grouped else begin

    def _accepted(self, function: str, given: Any, in_place: bool) -> tuple[Tensor, ...]:
        """Convert a grouped function's argument to tensors, as `several` and `FrontEnd.accept` do."""
        tensors = several(function, given, self.front.noun)
        if not self.front.converts:
            return tuple(tensors)
        return tuple([self.front.accept(each, in_place) for each in tensors])

    # --- plain calls ---------------------------------------------------------------------------------------------

    def one(
        self, collective: Collective, tensor: Tensor, name: str | None, process_set: ProcessSet, options: Options
    ) -> Any:
        """Carry out a call of one tensor, without gradients. The result is that of `calls.call_of_one`."""
        call = self.front, collective, tensor, False, options, process_set
        return self.now(collective.name, name, process_set, call_of_one, *call)

    def received(
        self, collective: Collective, tensor: Tensor, name: str | None, process_set: ProcessSet, options: Options
    ) -> Received:
        """Carry out a call of one tensor, whose rows go to other ranks; gradients flow through it."""
        if not self.front.is_tracked(tensor):
            received: Received = self.one(collective, tensor, name, process_set, options)
            return received
        call = self._differentiable(collective, PLAIN, name, process_set, options)
        (rows,) = self.front.differentiate(call, [tensor])
        return Received(rows, tuple(call.received[0]))

    def outputs(
        self,
        collective: Collective,
        form: Form,
        tensors: Sequence[Tensor],
        name: str | None,
        process_set: ProcessSet,
        options: Options,
    ) -> Sequence[Tensor]:
        """Carry out a call that is not in place, and return its outputs; gradients flow through it."""
        if any(map(self.front.is_tracked, tensors)):
            return self.differentiable_outputs(collective, form, tensors, name, process_set, options)
        return self.outcome(collective, form, tensors, name, process_set, options).outputs

    def differentiable_outputs(
        self,
        collective: Collective,
        form: Form,
        tensors: Sequence[Tensor],
        name: str | None,
        process_set: ProcessSet,
        options: Options,
    ) -> Sequence[Tensor]:
        """Do the same as `outputs`, for tensors that the front end may track in its own way."""
        call = self._differentiable(collective, form, name, process_set, options)
        return self.front.differentiate(call, tensors)

    def outcome(
        self,
        collective: Collective,
        form: Form,
        tensors: Sequence[Tensor],
        name: str | None,
        process_set: ProcessSet,
        options: Options,
    ) -> Outcome:
        """Carry out a call that is not in place, through which no gradients flow."""
        if form.grouped:
            call = self.front, collective, tensors, False, options, process_set
            results = self.now(form.operation(collective.name), name, process_set, call_of_several, *call)
        else:
            results = (self.one(collective, tensors[0], name, process_set, options),)
        if not collective.receives_rows:
            return Outcome(results, ())
        return Outcome(tuple(each.rows for each in results), tuple(each.counts for each in results))

    def _differentiable(
        self, collective: Collective, form: Form, name: str | None, process_set: ProcessSet, options: Options
    ) -> DifferentiableCall:
        def run(tensors: Sequence[Tensor]) -> Outcome:
            return self.outcome(collective, form, tensors, name, process_set, options)

        return DifferentiableCall(self.differentiable_outputs, collective, form, name, process_set, options, run)

    # --- with a compression that is a part of the reduction --------------------------------------------------------

    def _compressed(
        self,
        collective: Collective,
        form: Form,
        compression: Recipe | Feedback,
        tensors: Sequence[Tensor],
        name: str | None,
        process_set: ProcessSet,
        options: Options,
    ) -> Sequence[Tensor]:
        check_compressed_call(collective, compression, name)
        operation = form.operation(collective.name)

        def make(session: Session, group: int, full_name: str, inputs: Sequence[Tensor]) -> Call:
            self.front.check_together(inputs)
            names = member_names(full_name, len(inputs)) if form.grouped else [full_name]
            outputs = [None] * len(inputs)
            return compressed_call(self.front, session, compression, inputs, outputs, names, options, group)

        def run(inputs: Sequence[Tensor]) -> Outcome:
            return Outcome(self.now(operation, name, process_set, make, inputs), ())

        if any(map(self.front.is_tracked, tensors)):
            # The gradient is that of the reduction without compression.
            call = DifferentiableCall(
                self.differentiable_outputs, collective, form, name, process_set, options, run, compression
            )
            return self.front.differentiate(call, tensors)
        return run(tensors).outputs

    # --- in place ------------------------------------------------------------------------------------------------

    def _in_place(
        self,
        written: Sequence[Tensor],
        operation: str,
        name: str | None,
        process_set: ProcessSet,
        make: Callable[..., Call],
        *details: Any,
    ) -> Any:
        """Do the same as `now` for a call that overwrites its inputs, and keep copies, because the call may be
        repeated.
        """
        session = current()
        retry = session.retry
        once = partial(
            session.carry_out_once,
            HandleTable.run,
            operation,
            name,
            process_set,
            make,
            *details,
            scope=self.front.scope,
            recurs=make in self._recurring,
        )
        if retry is None or process_set.process_set_id != 0:
            return once()
        kept = [self.front.copy(tensor) for tensor in written]

        def put(values: Sequence[Tensor]) -> None:
            for tensor, value in zip(written, values, strict=True):
                self.front.assign(tensor, value)

        def adopt(result: Any) -> Any:
            if make is call_of_one:
                put([result])
                return written[0]
            put(result)
            return list(written)

        return retry.run(once, lambda: put(kept), adopt)
