"""A framework, an engine and a world on plain memory: each rank is a thread."""

from __future__ import annotations

import ctypes
import threading
import zlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

from farandole.errors import WorkerLostError
from farandole.worker.core.dropped_steps import DroppedSteps
from farandole.worker.core.dtype import Average, DType
from farandole.worker.core.group import global_process_set
from farandole.worker.core.handle import HandleTable, Pending
from farandole.worker.core.request_options import options_of
from farandole.worker.core.submission import Submission
from farandole.worker.gradients import reducer
from farandole.worker.gradients.buckets import Bucket, Layout
from farandole.worker.gradients.entry import Entry
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.reducer import Reducer
from farandole.worker.gradients.requests import request_of
from farandole.worker.gradients.views import View

Result = TypeVar("Result")
WAIT_SECONDS = 20.0


class World:
    """The shared data of some ranks: requests by name, and whether the world is alive."""

    def __init__(self, size: int, generation: int = 1) -> None:
        self.size, self.generation = size, generation
        self.has_ended = False
        self._changed = threading.Condition()
        self._requests: dict[str, list[Any]] = {}
        self._done: set[int] = set()

    def submit(self, number: int, request: Any) -> None:
        """Add one rank's request; the last one of a name is reduced for all ranks."""
        with self._changed:
            same = self._requests.setdefault(request.name.decode(), [])
            same.append((number, request))
            if len(same) == self.size and not self.has_ended:
                _reduce([each for _, each in same])
                self._done |= {done for done, _ in same}
                del self._requests[request.name.decode()]
                self._changed.notify_all()

    def end(self) -> None:
        """Fail all requests that are not done."""
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()

    def wait(self, number: int) -> bool:
        """Wait for a request; return whether it was reduced."""
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._done or self.has_ended, WAIT_SECONDS)
            return number in self._done


def _reduce(requests: Sequence[Any]) -> None:
    count = requests[0].shape[0]
    inputs = [(ctypes.c_float * count).from_address(each.input) for each in requests]
    options = options_of(requests[0])
    divisor = len(requests) if options["op"] == Average else 1
    sums = [sum(values) / divisor for values in zip(*inputs, strict=True)]
    for each in requests:
        (ctypes.c_float * count).from_address(each.output)[:] = sums


class Engine:
    """A fake engine of one rank, with the methods that a reducer uses.

    Attributes:
        batches: the names of the requests of each call.
        arena_bytes: the free bytes of the arena.
    """

    _numbers = iter(range(1, 1 << 30))

    def __init__(self, world: World) -> None:
        self.world = world
        self.batches: list[list[str]] = []
        self.arena_bytes = 1 << 20

    def allocate(self, size: int) -> Any:
        if size > self.arena_bytes:
            return None
        self.arena_bytes -= size
        return SimpleNamespace(buffer=lambda: (ctypes.c_char * size)())

    def submit(self, submission: Submission) -> None:
        self.batches.append([request.name.decode() for request in submission.requests])
        for index, request in enumerate(submission.requests):
            submission.handles[index] = next(self._numbers)
            self.world.submit(submission.handles[index], request)

    def wait(self, submission: Submission) -> None:
        error = next(filter(None, self.errors(submission)), None)
        if error is not None:
            raise error

    def errors(self, submission: Submission) -> list[Exception | None]:
        return [None if self.world.wait(handle) else WorkerLostError("gone") for handle in submission.handles]

    def release(self, submission: Submission) -> None:
        submission.handles[0] = 0


class Session:
    """A fake session of one rank."""

    def __init__(self, world: World, *, retry: Any = None, keeps: bool = True) -> None:
        self.world = world
        self.engine = Engine(world)
        self.handles = HandleTable()
        self.retry = retry
        self.notices = retry
        self.settings = SimpleNamespace(elastic_keep_gradients=keeps)
        self.times_made_alike = 0
        self.dropped = DroppedSteps()

    def enter(self, world: World) -> None:
        self.world = self.engine.world = world

    def group_of(self, process_set: Any, operation: str) -> int:
        return 0


class PlainEntry(Entry):
    """A gradient that is an array of float32."""

    __slots__ = ("count", "frozen", "gradient", "on_device", "sparse")

    def __init__(self, name: str, count: int) -> None:
        super().__init__(name)
        self.count = count
        self.gradient: Any = None
        self.frozen = self.sparse = False
        self.on_device: str | None = None

    device = property(lambda self: self.on_device)
    trained = property(lambda self: not self.frozen)
    travels_sparse = property(lambda self: self.sparse)
    dtype = property(lambda self: DType.F32)

    def layout(self) -> Layout:
        return Layout(DType.F32, (self.count,), 4 * self.count)

    def wants_view(self) -> bool:
        return self.gradient is not None

    def attach(self) -> None:
        self._in_view()[:] = self.gradient
        self.gradient = self._in_view()

    def detach(self) -> None:
        pass

    def put(self, share: float) -> bool:
        if self.frozen or self.sparse:
            return False
        self.absent = self.gradient is None
        values = [0.0] * self.count if self.gradient is None or not share else self.gradient
        self._origin()[:] = array("f", [value * share for value in values])
        self.gradient = self._in_view()
        return True

    def scale(self, factor: float) -> None:
        self._origin()[:] = array("f", [value * factor for value in self._origin()])

    def take_back(self) -> None:
        self.gradient = self._in_view()

    def lies_in_view(self, gradient: Any) -> bool:
        return isinstance(gradient, memoryview)  # Otherwise it is an array.

    def keep(self) -> None:
        self.kept = None if self.gradient is None else array("f", self.gradient)

    def restore(self) -> None:
        self.gradient = array("f", self.kept)

    def weight(self, share: float) -> None:
        if self.gradient is not None:
            self.gradient = array("f", [value * share if share else 0.0 for value in self.gradient])

    def state_of(self, gradient: Any) -> Any:
        return list(gradient)

    def adopt(self, state: Any) -> None:
        self.gradient = array("f", state)

    def _in_view(self) -> Any:
        assert self.view is not None
        return self.view.bytes().cast("f")

    def _origin(self) -> Any:
        return self._in_view() if self.own_view is None else self.own_view.bytes().cast("f")


class GradientFrontEnd:
    """A framework whose backward pass is `Rank.backward`."""

    uses_views = True

    def __init__(self, options: ReduceOptions) -> None:
        self._options = options
        self.hooks: dict[str, Callable[[], None]] = {}
        self.ends: list[Callable[[], None]] = []
        self.in_backward = False
        self.general: list[str] = []
        self.forgotten = 0
        self.writes = 0

    def watch(self, entry: Entry, reducer: Any) -> Callable[[], None]:
        self.hooks[entry.name] = lambda: reducer().on_gradient(entry)
        return lambda: None

    def at_end_of_backward(self, callback: Callable[[], None]) -> bool:
        if self.in_backward:
            self.ends.append(callback)
        return self.in_backward

    def dense_call(self, session: Any, entries: Sequence[Any]) -> GeneralCall:
        arrays = []
        for entry in entries:
            self.general.append(entry.name)
            entry.absent = entry.gradient is None
            entry.gradient = array("f", entry.gradient or [0.0] * entry.count)
            arrays.append((ctypes.c_float * entry.count).from_buffer(entry.gradient))
        addresses = [ctypes.addressof(each) for each in arrays]
        requests = [
            request_of(f"allreduce.{entry.name}", DType.F32, (entry.count,), address, address, self._options, session)
            for entry, address in zip(entries, addresses, strict=True)
        ]
        return GeneralCall(Pending(session.engine, Submission(requests), lambda _, arrays=arrays: None), lambda _: None)

    def sparse_call(self, session: Any, entry: Any) -> GeneralCall:
        return self.dense_call(session, [entry])

    def forget_residuals(self) -> None:
        self.forgotten += 1

    def present(self, bundles: Any) -> Any:
        pairs = [(entry, entry.gradient) for bundle in bundles for entry in bundle.entries]
        return [(entry, gradient) for entry, gradient in pairs if gradient is not None]

    def versions(self, gradients: Any) -> list[int]:
        return [self.writes] * len(gradients)


class PlainFlat:
    """The flat memory of a bucket of entries."""

    def __init__(self, options: ReduceOptions, entries: Sequence[Any], bucket: Bucket, *, keeps: bool) -> None:
        self.is_outgrown = False
        self._options, self._entries = options, entries
        self._floats = (ctypes.c_float * (bucket.size // 4))()
        self._source = (ctypes.c_float * (bucket.size // 4))() if keeps else self._floats
        begins = [offset // 4 for _, offset in bucket.placements]
        self._pieces = [slice(begin, begin + entry.count) for entry, begin in zip(entries, begins, strict=True)]
        for entry, (_, offset) in zip(entries, bucket.placements, strict=True):
            entry.view = View(self._floats, offset, 4 * entry.count)

    def came(self) -> None:
        pass

    def fits(self) -> bool:
        self.is_outgrown = any(entry.frozen or entry.sparse for entry in self._entries)
        return not self.is_outgrown

    def put(self, share: float) -> None:
        for entry, piece in zip(self._entries, self._pieces, strict=True):
            entry.absent = entry.gradient is None
            self._source[piece] = [value * share if share else 0.0 for value in entry.gradient or [0.0] * entry.count]

    def scale(self, factor: float) -> None:
        self._source[:] = [value * factor for value in self._source]

    def checksum(self) -> int:
        return zlib.crc32(self._floats)

    def call(self, session: Any) -> GeneralCall:
        addresses = ctypes.addressof(self._source), ctypes.addressof(self._floats)
        name, shape = f"allreduce.{self._entries[0].name}", (len(self._floats),)
        request = request_of(name, DType.F32, shape, *addresses, self._options, session)

        def store(_: Any) -> None:
            for entry, piece in zip(self._entries, self._pieces, strict=True):
                entry.gradient = memoryview(self._floats).cast("B").cast("f")[piece]

        return GeneralCall(Pending(session.engine, Submission([request]), lambda _: None), store)


class Rank:
    """One rank's training: entries, and the reducer of their gradients."""

    def __init__(
        self,
        session: Session,
        counts: dict[str, int],
        *,
        groups: Any = None,
        op: int = Average,
        devices: dict[str, str] | None = None,
        **how: Any,
    ):
        options = ReduceOptions(op, 1.0, 1.0, global_process_set)
        self.session = session
        _local.session = session
        self.entries = {name: PlainEntry(name, count) for name, count in counts.items()}
        for name, device in (devices or {}).items():
            self.entries[name].on_device = device
        self.front_end = GradientFrontEnd(options)
        bundles = [[self.entries[name] for name in group] for group in groups or [[name] for name in counts]]
        make_memory = partial(PlainFlat, options)
        self.reducer = Reducer(self.front_end, bundles, options, passes=how.pop("passes", 1), make_memory=make_memory)
        assert not how

    def backward(self, **gradients: float) -> None:
        """Compute gradients, the last one first; all elements of each are the given number."""
        self.front_end.in_backward = True
        for name, value in reversed(gradients.items()):
            entry = self.entries[name]
            entry.gradient = array("f", [value] * entry.count)
            self.front_end.hooks[name]()
        self.front_end.in_backward = False
        for end in self.front_end.ends:
            end()
        self.front_end.ends = []

    def values(self) -> dict[str, float]:
        """Return the value of each gradient's elements, which are all the same."""
        result = {}
        for name, entry in self.entries.items():
            (result[name],) = set(entry.gradient)
        return result


_local = threading.local()


def patch(monkeypatch: Any) -> None:
    """Give each thread a separate session."""
    monkeypatch.setattr(reducer, "current", lambda: _local.session)
    monkeypatch.setattr(reducer, "session_if_any", lambda: _local.session)


def run(size: int, body: Callable[[int], Result]) -> list[Result]:
    """Run a function on each rank."""
    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(body, range(size)))
