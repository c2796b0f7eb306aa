"""Calls that are made again: of one tensor, under the same name, with the same options.

The other modules find out for each call what is asked for, check it, and describe it for the engine. That takes several
times as long as a small collective does. For the next call of the same name, options and process set the answers are
the same, if the tensor is like the last one. So a call is kept when it is made for the second time, and made again with
the new tensor. Keeping it takes half as long as making it, and a name may never recur, such as one for each step.

They are kept in `Session.repeats`. A call that is in use is not there: another thread that makes it goes the long way.
A call without a name has one that recurs (`core.request.Names`), and is kept under that at its first time.

Where many workers share a core, each of their calls finds the caches full of other workers' data, and the time of a
call is that of loading Python's functions and objects. So there are few of them here, and large ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from farandole.base.request_kind import Rows
from farandole.worker.collectives.declaration import PLAIN, POSTSCALE, PRESCALE, Collective, Form, Options
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.basics import current
from farandole.worker.core.group import ProcessSet
from farandole.worker.core.session import Session
from farandole.worker.core.submission import INPUT_WORD, OUTPUT_WORD, Single

# More calls of a session are not kept: their names may never recur.
MOST = 8192
_FACTORS = (PRESCALE.option, POSTSCALE.option)
# The form of a call has no compression, so its runner takes none.
_NOT_GIVEN = object()
# A call was not made, because it is not kept.
_NEW = object()
# In the place of a call that was made once under its name.
_ONCE = object()


class Repeat:
    """A call of one tensor, whose result is like it, that is made again and again.

    Attributes:
        dtype: the framework's type of its tensors.
        shape: their shape.
        misfits: how often in a row it was not made because a tensor was not like its own.
        patience: the number of misfits up to which it stays: the next tensors may be like its own again.
    """

    __slots__ = ("_front", "_key", "_result", "_session", "_single", "_tensor", "dtype", "misfits", "patience", "shape")

    def __init__(
        self, session: Session, key: Hashable, front: FrontEnd[Any], single: Single, tensor: Any, patience: int
    ) -> None:
        """Create a call that `put_back` keeps for the next time.

        Args:
            session: the session.
            key: its place in `Session.repeats`.
            front: the front end of its tensors.
            single: the request, filled in except for its addresses. It belongs to this call from now on.
            tensor: a tensor like all of its tensors.
            patience: the number of misfits up to which it stays.
        """
        self._session, self._key, self._front, self._single = session, key, front, single
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.misfits, self.patience = 0, patience
        self._tensor: Any = None
        self._result: Any = None

    def put_back(self) -> None:
        """Keep it for the next call, because it is not made now."""
        self._tensor = self._result = None
        self._session.repeats[self._key] = self

    def begun(self) -> bool:
        """Return whether the engine knows the request, or did know it."""
        return self._tensor is None or self._single.submitted

    def done(self) -> bool:
        """Return whether the request is done."""
        return self._tensor is None or self._session.engine.done(self._single)


class BlockingRepeat(Repeat):
    """A call that waits for its result."""

    __slots__ = ("_run",)

    def __init__(
        self, session: Session, key: Hashable, front: FrontEnd[Any], single: Single, tensor: Any, patience: int
    ) -> None:
        super().__init__(session, key, front, single, tensor, patience)
        self._run = session.engine.prepare_run(single)

    def make(self, tensor: Any, address: int, result: Any, target: int) -> Any:
        """Make the call, and return the result. If it is interrupted, the session keeps it while it is in flight.

        Args:
            tensor: the input.
            address: its address.
            result: a tensor of the same kind, or the input if the call is in place.
            target: the address of the result.
        """
        words, engine = self._single.words, self._session.engine
        words[INPUT_WORD], words[OUTPUT_WORD] = address, target
        try:
            started = time.monotonic_ns()
            try:
                status = self._run()
            finally:
                engine.blocked_ns += time.monotonic_ns() - started
            if status:
                engine.go_on(self._single, status)
                engine.release(self._single)
        except BaseException as error:
            self._tensor, self._result = tensor, result
            self._fail(error)
            raise
        if result is tensor:
            self._front.note_write(result)
        self.misfits = 0
        self._session.repeats[self._key] = self
        return result

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._session.handles.keep_in_flight(self)
        elif self._single.submitted:
            self._session.engine.release(self._single)
            self._tensor = self._result = None


class AsyncRepeat(Repeat):
    """A call that returns a handle: an `AsyncCall`."""

    __slots__ = ("_error", "_prepared")

    def __init__(
        self, session: Session, key: Hashable, front: FrontEnd[Any], single: Single, tensor: Any, patience: int
    ) -> None:
        super().__init__(session, key, front, single, tensor, patience)
        self._prepared = session.engine.prepare(single)
        self._error: Exception | None = None

    def make(self, tensor: Any, address: int, result: Any, target: int) -> int:
        """Submit the request, and return a handle for its result. The arguments are those of `BlockingRepeat.make`."""
        self._tensor, self._result = tensor, result
        words = self._single.words
        words[INPUT_WORD], words[OUTPUT_WORD] = address, target
        return self._session.handles.begin(self)

    def submit(self) -> None:
        """Submit the request."""
        if status := self._prepared.submit():
            self._session.engine.go_on(self._single, status)

    def wait(self) -> None:
        """Wait until the request is done."""
        engine = self._session.engine
        started = time.monotonic_ns()
        try:
            status = self._prepared.wait()
        finally:
            engine.blocked_ns += time.monotonic_ns() - started
        if status:
            try:
                engine.go_on(self._single, status)
            except Exception as error:
                self._error = error

    def result(self) -> Any:
        """Return the result of a request that is done, or raise its error."""
        self._prepared.release()
        self._single.handles[0] = 0
        if self._error is not None:
            raise self._error
        result = self._result
        if result is self._tensor:
            self._front.note_write(result)
        self.misfits = 0
        self.put_back()
        return result


class Repeats:
    """The calls of one form of a collective, in one front end, that are made again."""

    def __init__(self, front: FrontEnd[Any], collective: Collective, form: Form, run: Callable[..., Any]) -> None:
        """Prepare for calls.

        Args:
            front: the front end.
            collective: the collective.
            form: the form, which is not grouped.
            run: the runner that makes calls for the first time.
        """
        self._front, self._collective, self._run = front, collective, run
        self._settle, self._is_traced = collective.settle, front.is_traced
        self._in_place, self._none = form.in_place, front.no_compression
        self._kept = AsyncRepeat if form.later else BlockingRepeat
        self._make: Callable[..., Any] = self._kept.make
        self._may_be_tracked = front.has_gradients and form == PLAIN
        self._function = front.scope + form.function(collective.name)
        self._operation = front.scope + form.operation(collective.name)

    def run(
        self, tensor: Any, name: str | None, process_set: ProcessSet, options: Options, compression: Any = _NOT_GIVEN
    ) -> Any:
        """Make a call, again if it was made before and can be made again with this tensor.

        Args:
            tensor: what the user passed for its tensor.
            name: the name; None: it is counted.
            process_set: the process set.
            options: the options as the user passed them.
            compression: the compression, if the form has one.

        Returns:
            The result, or a handle for it.
        """
        if compression is not self._none and compression is not _NOT_GIVEN:
            self._settle(options)
            return self._run(tensor, name, process_set, options, compression)
        key: tuple[Any, ...] = ()
        if (self._is_traced is None or not self._is_traced()) and not (self._may_be_tracked and self._tracks(tensor)):
            session = current()
            if name is None:
                result, key = self._make_unnamed(session, tensor, process_set.process_set_id, options)
                if result is not _NEW:
                    return result
            else:
                key = (self._function, name, False, process_set.process_set_id, *options.values())
                found = self._find(session, key, tensor)
                if found is not None:
                    return self._make(*found)
        if not _stand_for_themselves(options):
            key = ()
        self._settle(options)
        result = self._run(tensor, name, process_set, options)
        if key:
            self._keep(key, tensor, options)
        return result

    def _tracks(self, tensor: Any) -> bool:
        try:
            return self._front.is_tracked(tensor)
        except AttributeError:  # It is not a tensor, which `run` says or, if it can, makes one of it.
            return True

    def _make_unnamed(
        self, session: Session, tensor: Any, group: int | None, options: Options
    ) -> tuple[Any, tuple[Any, ...]]:
        """Make a call again whose name is counted.

        Returns:
            The result, or `_NEW` if the call was not made; and the key of the call, () if it cannot be kept.
        """
        if group is None or not self._front.submits_in_order:
            return _NEW, ()
        numbers, found = session.names.numbers(self._operation, group), None
        number = numbers.take()
        try:
            key = (self._function, session.names.name(number, True), True, group, *options.values())
            found = self._find(session, key, tensor)
            if found is not None:
                return self._make(*found), key
        except Exception:
            if found is None or not found[0].begun():
                numbers.give_back(number)
            raise
        numbers.give_back(number)
        return _NEW, key

    def _find(self, session: Session, key: Hashable, tensor: Any) -> tuple[Repeat, Any, int, Any, int] | None:
        """Return a call that was made before and can be made with this tensor, and the arguments of `make`."""
        try:
            repeat: Any = session.repeats.pop(key, None)
        except TypeError:  # An option has no hash.
            return None
        if repeat is _ONCE:
            session.repeats[key] = _ONCE
            return None
        if repeat is None or session.retry is not None or (session.notices is not None and session.only_arrived):
            return None
        if self._in_place:
            address = self._front.address_if_like(tensor, repeat.dtype, repeat.shape)
            if address:
                return repeat, tensor, address, tensor, address
        else:
            memory = self._front.beside(tensor, repeat.dtype, repeat.shape)
            if memory is not None:
                return repeat, tensor, *memory
        repeat.misfits += 1
        repeat.put_back()
        return None

    def _keep(self, key: tuple[Any, ...], tensor: Any, options: Options) -> None:
        """Keep a call that has been made, if it can be made again.

        Args:
            key: its key.
            tensor: what the user passed for its tensor.
            options: its settled options.
        """
        session, front, collective = current(), self._front, self._collective
        if session.retry is not None or session.only_arrived:
            return
        _, name, unnamed, group, *_ = key
        earlier, patience = session.repeats.get(key), 1
        if isinstance(earlier, Repeat):
            if earlier.misfits <= earlier.patience:
                return
            patience = 2 * earlier.patience  # Tensors that take turns would cost a new call each time.
        if len(session.repeats) >= MOST:
            session.repeats.clear()
        if earlier is None and not unnamed:
            session.repeats[key] = _ONCE
            return
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
        self._kept(session, key, front, single, tensor, patience).put_back()


def repeats(collective: Collective) -> bool:
    """Return whether calls of a collective can be made again: their result is like the tensor."""
    return collective.is_quick and collective.rows is Rows.SAME and collective.returns is None


def _stand_for_themselves(options: Options) -> bool:
    """Return whether equal options mean the same: objects may change, and a factor of 0 or 0.0 equals -0.0."""
    return all(
        value is None or (isinstance(value, (int, float)) and (value != 0 or name not in _FACTORS))
        for name, value in options.items()
    )
