"""Calls that are made again: of one tensor, under the same name, with the same options.

The other modules find out for each call what is asked for, check it, and describe it for the engine. That takes several
times as long as a small collective does. For the next call of the same name, options and process set the answers are
the same, if the tensor is like the last one. So a call is kept when it is done, and made again with the new tensor.

They are kept in `Session.repeats`. A call that is in use is not there: another thread that makes it goes the long way.
A call without a name has one that recurs (`core.request.Names`), and is kept under that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from farandole.base.request_kind import Rows
from farandole.worker.collectives.declaration import POSTSCALE, PRESCALE, Collective, Form, Options
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.basics import current
from farandole.worker.core.engine import Engine
from farandole.worker.core.group import ProcessSet
from farandole.worker.core.handle import Call, HandleTable
from farandole.worker.core.session import Session
from farandole.worker.core.submission import Single

# More calls of a session are not kept: their names may never recur.
MOST = 8192
_FACTORS = (PRESCALE.option, POSTSCALE.option)
# The result of `Repeats.make` if there is no call that can be made again.
NEW = object()


class Repeat:
    """A `Call` of one tensor, whose result is like it, that is made again and again.

    Attributes:
        dtype: the framework's type of its tensors.
        shape: their shape.
        misfits: how often in a row it was not made because a tensor was not like its own.
        patience: the number of misfits up to which it stays: the next tensors may be like its own again.
    """

    __slots__ = (
        "_engine",
        "_error",
        "_front",
        "_kept",
        "_key",
        "_prepared",
        "_result",
        "_single",
        "_tensor",
        "dtype",
        "misfits",
        "patience",
        "shape",
    )

    def __init__(
        self,
        kept: dict[Hashable, Repeat],
        key: Hashable,
        front: FrontEnd[Any],
        engine: Engine,
        single: Single,
        tensor: Any,
        patience: int,
    ) -> None:
        """Keep a call for the next time.

        Args:
            kept: the calls of its session, where it is put when it is done.
            key: its place there.
            front: the front end of its tensors.
            engine: the session's engine.
            single: the request, filled in except for its addresses. It belongs to this call from now on.
            tensor: a tensor like all of its tensors.
            patience: the number of misfits up to which it stays.
        """
        self._kept, self._key, self._front, self._engine, self._single = kept, key, front, engine, single
        self._prepared = engine.prepare(single)
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.misfits, self.patience = 0, patience
        self._tensor: Any = None
        self._result: Any = None
        self._error: Exception | None = None

    def take(self, tensor: Any, address: int, result: Any, target: int) -> None:
        """Hold the tensor and the result of the next call until it is done.

        Args:
            tensor: the input.
            address: its address.
            result: a tensor of the same kind, or the input if the call is in place.
            target: the address of the result.
        """
        self._tensor, self._result = tensor, result
        self._single.place(address, target)

    def submit(self) -> None:
        """Submit the request."""
        self._engine.submit(self._single)

    def wait(self) -> None:
        """Wait until the request is done."""
        try:
            self._engine.wait(self._single)
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        """Return the result of a request that is done, or raise its error."""
        self._engine.release(self._single)
        if self._error is not None:
            raise self._error
        return self._done()

    def run(self) -> Any:
        """Submit the request, wait for it, and return its result, or raise its error."""
        try:
            self._engine.run_prepared(self._single, self._prepared)
        except Exception:
            if self._single.submitted:
                self._engine.release(self._single)
                self._tensor = self._result = None
            raise
        return self._done()

    def put_back(self) -> None:
        """Keep it for the next call, because it is not made now."""
        self._tensor = self._result = None
        self._kept[self._key] = self

    def begun(self) -> bool:
        """Return whether the engine knows the request, or did know it."""
        return self._tensor is None or self._single.submitted

    def done(self) -> bool:
        """Return whether the request is done."""
        return self._tensor is None or self._engine.done(self._single)

    def _done(self) -> Any:
        result = self._result
        if result is self._tensor:
            self._front.note_write(result)
        self.misfits = 0
        self.put_back()
        return result


class Repeats:
    """The calls of one form of a collective, in one front end, that are made again."""

    def __init__(
        self, front: FrontEnd[Any], collective: Collective, form: Form, how: Callable[[HandleTable, Call], Any]
    ) -> None:
        """Prepare for calls.

        Args:
            front: the front end.
            collective: the collective.
            form: the form, which is not grouped.
            how: `HandleTable.run` or `HandleTable.begin`.
        """
        self._front, self._collective, self._how = front, collective, how
        self._in_place = form.in_place
        self._function = front.scope + form.function(collective.name)
        self._operation = front.scope + form.operation(collective.name)

    def make(
        self, tensor: Any, name: str | None, process_set: ProcessSet, options: Options
    ) -> tuple[Any, tuple[Any, ...]]:
        """Make a call again, if it was made before and can be made again with this tensor.

        Args:
            tensor: what the user passed for its tensor.
            name: the name; None: it is counted.
            process_set: the process set.
            options: the settled options.

        Returns:
            The result of `how`, or `NEW` if the call was not made; and the key of the call, for `keep`.
        """
        session, group = current(), process_set.process_set_id
        if name is None:
            return self._make_unnamed(session, tensor, group, options)
        key = (self._function, name, False, group, *options.values())
        repeat = self._find(session, key, tensor)
        return (NEW if repeat is None else self._how(session.handles, repeat)), key

    def _make_unnamed(
        self, session: Session, tensor: Any, group: int | None, options: Options
    ) -> tuple[Any, tuple[Any, ...]]:
        if group is None or not self._front.submits_in_order:
            return NEW, ()
        numbers, repeat = session.names.numbers(self._operation, group), None
        number = numbers.take()
        try:
            key = (self._function, session.names.name(number, True), True, group, *options.values())
            repeat = self._find(session, key, tensor)
            if repeat is not None:
                return self._how(session.handles, repeat), key
        except Exception:
            if repeat is None or not repeat.begun():
                numbers.give_back(number)
            raise
        numbers.give_back(number)
        return NEW, key

    def _find(self, session: Session, key: Hashable, tensor: Any) -> Repeat | None:
        """Return a call that was made before, with this tensor."""
        try:
            repeat: Repeat | None = session.repeats.pop(key, None)
        except TypeError:  # An option has no hash.
            return None
        if repeat is None or session.retry is not None or (session.notices is not None and session.only_arrived):
            return None
        front = self._front
        address = front.address_if_like(tensor, repeat.dtype, repeat.shape)
        if not address:
            repeat.misfits += 1
            repeat.put_back()
            return None
        if self._in_place:
            repeat.take(tensor, address, tensor, address)
        else:
            result = front.empty_like(tensor)
            repeat.take(tensor, address, result, front.address(result))
        return repeat

    def keep(self, key: tuple[Any, ...], tensor: Any, options: Options) -> None:
        """Keep a call that has been made, if it can be made again.

        Args:
            key: its key, as `make` returned it.
            tensor: what the user passed for its tensor.
            options: its options.
        """
        session, front, collective = current(), self._front, self._collective
        if not key or session.retry is not None or session.only_arrived or not _stand_for_themselves(options):
            return
        _, name, unnamed, group, *_ = key
        earlier, patience = session.repeats.get(key), 1
        if earlier is not None:
            if earlier.misfits <= earlier.patience:
                return
            patience = 2 * earlier.patience  # Tensors that take turns would cost a new call each time.
        if not front.address_if_like(tensor, getattr(tensor, "dtype", None), getattr(tensor, "shape", None)):
            return
        dtype = front.ready_dtype(tensor)
        if dtype is None:
            return
        full_name = f"{self._operation}.{name}".encode()
        single = Single(session.pool, len(full_name), len(tensor.shape))
        single.fill(collective.kind, dtype, group, tensor.shape, full_name, 0, 0, collective.native_options(options))
        if unnamed:
            single.make_in_turn()
        if len(session.repeats) >= MOST:
            session.repeats.clear()
        session.repeats[key] = Repeat(session.repeats, key, front, session.engine, single, tensor, patience)


def repeats(collective: Collective) -> bool:
    """Return whether calls of a collective can be made again: their result is like the tensor."""
    return collective.is_quick and collective.rows is Rows.SAME and collective.returns is None


def _stand_for_themselves(options: Options) -> bool:
    """Return whether equal options mean the same: objects may change, and a factor of 0 or 0.0 equals -0.0."""
    return all(
        value is None or (isinstance(value, (int, float)) and (value != 0 or name not in _FACTORS))
        for name, value in options.items()
    )
