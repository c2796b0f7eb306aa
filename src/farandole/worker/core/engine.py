"""One native engine as a Python value: its worlds, its requests, its arena.

Ownership: a reference to the `Engine`, or to a `Block` of its arena, keeps the native engine alive. It is destroyed
when the last of them is gone, so a tensor in the arena can safely outlive the session.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from farandole.base import nccl_library
from farandole.base.request_kind import Kind
from farandole.base.settings.table import Settings
from farandole.base.wire.os_text import as_bytes
from farandole.errors import FarandoleError, HorovodInternalError, SettingError
from farandole.worker.core.binding import ABI_VERSION, Library, NativeEvent, NativeSetting, NativeStats, NativeWorld
from farandole.worker.core.gpu_stream import GpuStream
from farandole.worker.core.status import Status, from_status
from farandole.worker.core.submission import Single, Submission
from farandole.worker.core.user_log import launcher_stderr

# A wait returns to Python this often, so that Ctrl-C is heard.
WAIT_SLICE_SECONDS = 0.2

_TIMEOUT = int(Status.TIMEOUT)

# Arguments of prepared functions: how many requests, and how long a wait lasts.
_ONE = ctypes.c_size_t.from_param(1)
_SLICE = ctypes.c_double.from_param(WAIT_SLICE_SECONDS)


class Block:
    """A piece of the arena. Its memory is freed when the last reference is gone.

    Attributes:
        address: the address of its first byte, aligned to 64 bytes.
        size: its length in bytes.
    """

    def __init__(self, engine: Engine, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self._engine = engine
        weakref.finalize(self, _free, engine._library, engine._pointer, address, os.getpid()).atexit = False

    def buffer(self) -> ctypes.Array[ctypes.c_char]:
        """Return the memory as a writable buffer that keeps the block alive."""
        buffer = (ctypes.c_char * self.size).from_address(self.address)
        buffer._block = self  # type: ignore[attr-defined]
        return buffer


class Prepared(NamedTuple):
    """Functions that make one request again and again, without waiting for it when it is submitted.

    They check and convert no arguments, because that takes longer than a small collective. Each returns a status: 0, or
    one that `Engine.go_on` must deal with. The caller adds the time of `wait` to `Engine.blocked_ns`.

    Attributes:
        submit: submits the request.
        wait: waits for it.
        release: releases its handle and its result.
    """

    submit: Callable[[], int]
    wait: Callable[[], int]
    release: Callable[[], int]


# The words that announce this to a world, from `native/engine/engine_loop.cc`.
_HAS_LEFT = "has shut down, "


class Cause(NamedTuple):
    """The reason why a world ended."""

    rank: int | None
    """The rank that was lost or left; None if no particular one was."""
    how: str
    """The way in which it was lost, such as `its process ended without saying goodbye`."""
    certain: bool
    """Whether its process has ended, or it has announced its end. Otherwise it may be alive."""
    has_failed: bool = False
    """Whether its engine has failed, for example because of an error of NCCL, or has sent what cannot be right. Its
    process is alive, and joins again.
    """

    @property
    def left(self) -> bool:
        """Whether that rank has left the world gracefully."""
        return self.how.startswith(f"rank {self.rank} {_HAS_LEFT}")


class Engine:
    """A native engine.

    Every method raises an error of `farandole.errors` that corresponds to the status of the native function.

    Attributes:
        blocked_ns: the time that threads of this process have spent waiting for results, in nanoseconds.
    """

    def __init__(self, library: Library, settings: Settings) -> None:
        """Open the listening sockets and the arena; there is no world yet."""
        self._library = library
        self._pointer = ctypes.c_void_p()
        self.blocked_ns = 0
        self._generation = 0
        self._check_algorithm(settings.algorithm)
        given = _native_settings(settings)
        library.farandole_log_copy_to(launcher_stderr())
        self._check(library.farandole_engine_create(ABI_VERSION, given, len(given), self._pointer))
        self._pointer_argument = ctypes.c_void_p.from_param(self._pointer.value)
        weakref.finalize(self, _destroy, library, self._pointer, os.getpid()).atexit = False

    def _check_algorithm(self, name: str) -> None:
        if name != "auto" and name not in (known := self.algorithms()):
            raise SettingError(
                f"FARANDOLE_ALGORITHM is {name!r}, but should be auto or one of {', '.join(dict.fromkeys(known))}. "
                "Correct it or unset it."
            )

    # --- worlds ------------------------------------------------------------------------------------------------

    @property
    def native_pointer(self) -> int:
        """The address of the native engine, for libraries that submit requests themselves."""
        return self._pointer.value or 0

    @property
    def contact(self) -> str:
        """The contact by which other workers reach this one."""
        return _string(self._library.farandole_engine_contact(self._pointer))

    @property
    def links(self) -> str:
        """The kind of the current world's connections: "shm", "tcp", "shm+tcp" or "alone"."""
        return _string(self._library.farandole_engine_links(self._pointer))

    @property
    def routes(self) -> list[str]:
        """The routes of this worker's bytes to each rank of the current world, by rank; empty before the first world.

        "shared memory", "10.0.0.1 -> 10.0.0.2" (this worker's address and that rank's) or, for its own rank, "itself".
        """
        return _string(self._library.farandole_engine_routes(self._pointer)).splitlines()

    def form(
        self, generation: int, rank: int, size: int, contacts: Sequence[str], secret: bytes, timeout: float
    ) -> None:
        """Enter a world: connect to all its workers. An earlier world of this engine is revoked first.

        Args:
            generation: a number larger than any generation that this engine has been in.
            rank: this worker's rank in the world.
            size: number of workers.
            contacts: the `contact` of every worker, by rank; may be empty for a world of one.
            secret: the job's secret.
            timeout: seconds until all workers must be connected.

        Raises:
            WorkerLostError: the world has lost a worker already, or `revoke` was called for it in another thread.
        """
        self._generation = generation
        encoded = (ctypes.c_char_p * len(contacts))(*(contact.encode() for contact in contacts))
        world = NativeWorld(
            generation=generation,
            rank=rank,
            size=size,
            contacts=encoded if contacts else None,
            secret=secret,
            secret_bytes=len(secret),
            timeout_seconds=timeout,
        )
        self._check(self._library.farandole_engine_form(self._pointer, world))

    def leave(self, timeout: float) -> None:
        """Leave the world gracefully. Requests that were not agreed on fail, here and on all other ranks."""
        self._check(self._library.farandole_engine_leave(self._pointer, timeout))

    def revoke(self, lost_rank: int, reason: str, certain: bool = True, *, generation: int | None = None) -> None:
        """End a world at once on all its workers; their requests fail with `reason`.

        If the world is being formed, `form` fails with this reason. Does not wait for other workers.

        Args:
            lost_rank: the rank that was lost; -1: none in particular.
            reason: a sentence for people.
            certain: whether its process has ended, or it has announced its end; otherwise it may be alive. `cause`
                returns this.
            generation: the generation of the world. A world that has ended is not changed; one that this engine has not
                formed yet will end as soon as it begins. None: the latest that this engine has formed, or has begun to
                form.
        """
        of = self._generation if generation is None else generation
        self._check(self._library.farandole_engine_revoke(self._pointer, of, lost_rank, certain, as_bytes(reason)))

    def check_health(self) -> None:
        """Raise the reason why the world ended, if it did."""
        self._check(self._library.farandole_engine_health(self._pointer))

    def cause(self) -> Cause | None:
        """Return why the last world ended; None while it lives, and before the first one."""
        lost_rank, certain = ctypes.c_int32(), ctypes.c_int32()
        if not self._library.farandole_engine_cause(self._pointer, lost_rank, certain):
            return None
        how, has_failed = "", False
        try:
            self.check_health()
        except FarandoleError as error:
            how = str(error)
            has_failed = type(error) is HorovodInternalError  # All other causes have classes of their own.
        rank = lost_rank.value if lost_rank.value >= 0 else None
        return Cause(rank, how.removeprefix(f"rank {rank} was lost: "), bool(certain.value), has_failed)

    # --- requests ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> None:
        """Submit all requests or none. Their tensors must live until they are done."""
        status = self._library.farandole_submit(
            self._pointer, submission.requests, submission.count, submission.handles
        )
        if status:
            raise self._error(status)

    def run(self, submission: Submission) -> None:
        """Submit all requests or none, and wait for them as `wait` does.

        The calling thread does the engine's work meanwhile, so this is quicker than `submit` and `wait`.
        When it raises, `submission.submitted` says whether the engine knows the requests.
        """
        started = time.monotonic_ns()
        try:
            status = self._library.farandole_run(
                self._pointer, submission.requests, submission.count, submission.handles, WAIT_SLICE_SECONDS
            )
        finally:
            self.blocked_ns += time.monotonic_ns() - started
        if status == _TIMEOUT:
            self.wait(submission)
        elif status:
            raise self._error(status)

    def prepare(self, single: Single) -> Prepared:
        """Return functions that make this request again and again."""
        functions, engine = self._library.unchecked, self._pointer_argument
        request, handle = _argument_of(single.requests), _argument_of(single.handles)
        return Prepared(
            submit=partial(functions["farandole_submit"], engine, request, _ONE, handle),
            wait=partial(functions["farandole_wait_all"], engine, handle, _ONE, _SLICE),
            release=partial(functions["farandole_release_all"], engine, handle, _ONE),
        )

    def prepare_run(self, single: Single) -> Callable[[], int]:
        """Return a function that submits this request, waits for it, and releases it if it has not failed.

        It returns a status as the functions of `Prepared` do, and its caller adds its time to `blocked_ns`.
        """
        request, handle = _argument_of(single.requests), _argument_of(single.handles)
        run = self._library.unchecked["farandole_run_and_release"]
        return partial(run, self._pointer_argument, request, _ONE, handle, _SLICE)

    def go_on(self, submission: Submission, status: int) -> None:
        """Wait for requests that a prepared function has not seen done in its time; raise any other error.

        Args:
            submission: the requests.
            status: the status that the function returned, not 0.
        """
        if status != _TIMEOUT:
            raise self._error(status)
        self.wait(submission)

    def done(self, submission: Submission) -> bool:
        """Return whether all requests are done, successfully or with an error."""
        return all(self._library.farandole_poll(self._pointer, handle) == 1 for handle in submission.handles)

    def wait(self, submission: Submission) -> None:
        """Wait until all requests are done; raise the first error. Ctrl-C interrupts the wait, not the requests."""
        while not self.wait_for(submission, WAIT_SLICE_SECONDS):
            pass

    def wait_for(self, submission: Submission, seconds: float) -> bool:
        """Wait at most `seconds`, ignoring Ctrl-C; return whether all are done. Raise the first error if any failed."""
        return self._wait(self._library.farandole_wait_all, submission, seconds)

    def wait_on(self, submission: Submission, stream: GpuStream) -> None:
        """Wait until all requests are launched; raise the first error. Later work in the stream sees their results.

        The thread does not wait for the GPU. Ctrl-C interrupts the wait, not the requests.
        """
        while not self.wait_on_for(submission, stream, WAIT_SLICE_SECONDS):
            pass

    def wait_on_for(self, submission: Submission, stream: GpuStream, seconds: float) -> bool:
        """Wait as `wait_on` does, at most `seconds` and without reacting to Ctrl-C; return whether all are launched."""
        return self._wait(self._library.farandole_wait_on, submission, *stream, seconds)

    def _wait(self, function: Callable[..., int], submission: Submission, *arguments: float) -> bool:
        started = time.monotonic_ns()
        try:
            status = function(self._pointer, submission.handles, submission.count, *arguments)
        finally:
            self.blocked_ns += time.monotonic_ns() - started
        if status == _TIMEOUT:
            return False
        if status:
            raise self._error(status)
        return True

    def errors(self, submission: Submission) -> list[FarandoleError | None]:
        """Return the error of each request, or None. All requests must be done."""
        statuses = (self._library.farandole_wait(self._pointer, handle, 0.0) for handle in submission.handles)
        return [self._error(status) if status else None for status in statuses]

    def release(self, submission: Submission) -> None:
        """Release the handles and their results."""
        self._library.farandole_release_all(self._pointer, submission.handles, submission.count)
        submission.handles[0] = 0

    def result(self, handle: int) -> tuple[int, tuple[int, ...]]:
        """Return the result of a request that is done or launched: the address of its data (0 if none), and its sizes.

        Data in a GPU's memory has the address 0, and is fetched by `take`.

        For an allgather these are the first dimension of every rank of the group; for a new group, its id.
        The data is valid until `release`.
        """
        data = ctypes.c_void_p()
        sizes = ctypes.POINTER(ctypes.c_int64)()
        count = ctypes.c_size_t()
        self._check(self._library.farandole_result(self._pointer, handle, data, sizes, count))
        return data.value or 0, tuple(sizes[index] for index in range(count.value))

    def take(self, handle: int, target: int, stream: GpuStream) -> None:
        """Copy the data that a request has received in a GPU's memory to `target`, in this stream. Call it once."""
        self._check(self._library.farandole_take(self._pointer, handle, target, *stream))

    # --- memory and looking inside -----------------------------------------------------------------------------

    def allocate(self, size: int) -> Block | None:
        """Return zeroed memory of the arena, or None when the arena is full."""
        address = self._library.farandole_arena_alloc(self._pointer, size)
        return Block(self, address, size) if address else None

    def stats(self) -> dict[str, Any]:
        """Return the counts of the current generation, as `farandole.worker.core.basics.stats` describes."""
        native = NativeStats()
        self._check(self._library.farandole_get_stats(self._pointer, native))
        operations: dict[str, dict[str, Any]] = {
            kind.function: {
                "requests": counts.requests,
                "buckets": counts.buckets,
                "bytes": counts.bytes,
                "waiting_seconds": counts.waiting_ns / 1e9,
                "negotiating_seconds": counts.negotiating_ns / 1e9,
                "moving_seconds": counts.moving_ns / 1e9,
            }
            for kind, counts in zip(Kind, native.kinds, strict=True)
        }
        reductions = native.kinds[Kind.ALLREDUCE]
        operations["allreduce"] |= {"copied_in_bytes": reductions.copied_in, "copied_out_bytes": reductions.copied_out}
        return {
            "operations": operations,
            "rounds": native.rounds,
            "sleeps": native.sleeps,
            "blocked_seconds": self.blocked_seconds,
        }

    @property
    def blocked_seconds(self) -> float:
        """Return `blocked_ns` in seconds."""
        return self.blocked_ns / 1e9

    def read_events(self, cursor: int, into: ctypes.Array[NativeEvent]) -> tuple[int, int]:
        """Copy the events after `cursor` (0: from the oldest that is kept), in order.

        Returns:
            The number of copied events, and the next cursor. A cursor counts events: it moves by more than that number
            if some were overwritten before they were read.
        """
        position, lost = ctypes.c_uint64(cursor), ctypes.c_uint64()
        count = self._library.farandole_read_events(self._pointer, position, into, len(into), lost)
        return count, position.value

    def event_name(self, number: int) -> str:
        """Return the request name that belongs to a number in an event."""
        return _string(self._library.farandole_event_name(self._pointer, number))

    def event_signature(self, number: int) -> str:
        """Return the type and shape of the last request of this name, such as `float32 [3, 4]`."""
        return _string(self._library.farandole_event_signature(self._pointer, number))

    def algorithms(self) -> list[str]:
        """Return the names of the algorithms, in the order of their numbers in events."""
        return [row["name"] for row in json.loads(_string(self._library.farandole_algorithms()))]

    def keep(self, knobs: Mapping[str, int]) -> None:
        """Make worlds that are formed from now on start with these values, unless the settings define others."""
        self._check(self._library.farandole_keep_knobs(self._pointer, _knobs_text(knobs)))

    def tuning(self) -> dict[str, Any]:
        """Return the progress of autotuning in this world, as `farandole_tuning` in the C ABI. Only rank 0 knows it."""
        report: dict[str, Any] = json.loads(_string(self._library.farandole_tuning(self._pointer)))
        return report

    def choose(self, kind: Kind, op: int, group: int, size: int) -> dict[str, str]:
        """Return the `algorithm` for a tensor of `size` bytes in a group at present, and the `reason`.

        Raises:
            InvalidRequestError: there is no such group, or this kind has no algorithms.
        """
        answer = self._library.farandole_choose(self._pointer, int(kind), op, group, size)
        if answer is None:
            refusal = self._error(Status.INVALID_ARGUMENT)
            self.check_health()  # The reason, if the world has ended.
            raise refusal
        choice: dict[str, str] = json.loads(_string(answer))
        return choice

    def wait_stall_query(self, timeout: float) -> int | None:
        """Wait until other ranks, which wait for this one, ask what it is doing; return the query's number.

        Returns:
            None if no rank has asked within `timeout` seconds.

        Raises:
            FarandoleError: there is no world, or it has ended.
        """
        query = ctypes.c_uint64()
        asked = self._library.farandole_wait_stall_query(self._pointer, timeout, query)
        if asked < 0:
            self.check_health()
        return query.value if asked > 0 else None

    def answer_stall_query(self, query: int, text: str) -> None:
        """Answer a stall query with one line, the position in this program."""
        self._check(self._library.farandole_answer_stall_query(self._pointer, query, as_bytes(text)))

    def _check(self, status: int) -> None:
        if status:
            raise self._error(status)

    def _error(self, status: int) -> FarandoleError:
        library = self._library
        return from_status(status, _string(library.farandole_last_error()), library.farandole_last_lost_rank())


def _native_settings(settings: Settings) -> ctypes.Array[NativeSetting]:
    texts = settings.for_engine()
    texts["nccl_library"] = nccl_library.choose(settings.nccl_library or "")
    return (NativeSetting * len(texts))(*(NativeSetting(name.encode(), as_bytes(text)) for name, text in texts.items()))


def _knobs_text(knobs: Mapping[str, int]) -> bytes:
    return ",".join(f"{name}={value}" for name, value in knobs.items()).encode()


def _argument_of(memory: ctypes.Array[Any]) -> Any:
    """Return the address of an array as an argument of a prepared function, which the array must outlive."""
    return ctypes.c_void_p.from_param(ctypes.addressof(memory))


def _string(text: bytes | None) -> str:
    return "" if text is None else text.decode(errors="replace")


# Finalizers do nothing in a forked child, which lacks the engine's threads, and nothing with an engine that is gone:
# the collector may end an engine and its blocks, when they die together, in any order.


def _destroy(library: Library, pointer: ctypes.c_void_p, owner: int) -> None:
    if os.getpid() == owner and pointer.value:
        library.farandole_engine_destroy(pointer)
        pointer.value = None


def _free(library: Library, pointer: ctypes.c_void_p, address: int, owner: int) -> None:
    if os.getpid() == owner and pointer.value:
        library.farandole_arena_free(pointer, address)
