"""The calls of one process group, from their submission until the engine no longer uses their tensors.

Members match their calls by order, as c10d requires. So requests are named by a number that counts the group's
collectives of all kinds: members that make different calls with the same number get an error with this reason.
Transfers are counted for each sender, receiver and tag. The names recur, so that the engine's response cache stays
small; a request whose name is in flight waits in the engine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict, deque
from itertools import islice

import torch.distributed as dist

from farandole.base.request_kind import Kind
from farandole.errors import FarandoleError, InvalidRequestError
from farandole.torch.distributed.calls import Call, check_same
from farandole.torch.distributed.work import Completer, Terms, Work, failure
from farandole.worker.core.engine import WAIT_SLICE_SECONDS, Engine
from farandole.worker.core.request import RECURRING_NAMES, make_request
from farandole.worker.core.submission import Submission

LEAVE_SECONDS = 5.0


class WorksInFlight:
    """Submits the calls of a group in order, and keeps their works alive while the engine uses their tensors.

    Attributes:
        number: the number of collectives that have begun; the same on all members.
    """

    def __init__(self, engine: Engine, rank: int, label: str, name: str) -> None:
        """Create the object, without calls.

        Args:
            engine: the group's engine.
            rank: this process's rank in the group.
            label: the name that messages use for the group.
            name: the group's name, which is also used for its thread.
        """
        self._engine = engine
        self._rank = rank
        self._label = label
        self._completer = Completer(f"farandole-futures-{name}")
        # Guards the fields below, and the order of calls: a number must be submitted before the next one is taken.
        self._lock = threading.RLock()
        self.number = 0
        self._transfer_numbers: Counter[tuple[int, int, int]] = Counter()
        # In order; the works hold their tensors, which the engine uses whether or not the user holds the work.
        self._collectives: deque[Work] = deque()
        self._transfers: OrderedDict[Work, None] = OrderedDict()
        self._closed = False

    def begin(self, call: Call, seconds: float) -> Work:
        """Submit a collective, with a time limit."""
        with self._lock:
            number = self.number
            self._prepare(call.label)
            for offset, request in enumerate(call.requests):
                request.name = f"collective {(number + offset) % RECURRING_NAMES}".encode()
            submission = self._submit(call)
            self.number += len(call.requests)
            title = f"{call.label}, collective number {number} of {self._label},"
            terms = Terms(title, seconds, self._rank)
            work = Work(self._engine, submission, call, terms, self._completer, self._forget_collectives)
            self._collectives.append(work)
        return work

    def begin_transfer(self, call: Call, source: int, destination: int, tag: int, seconds: float) -> Work:
        """Submit a transfer from one member to another, with a time limit."""
        path = (source, destination, tag)
        with self._lock:
            self._prepare(call.label)
            number = self._transfer_numbers[path]
            call.requests[0].name = f"{source} to {destination}, tag {tag}, number {number % RECURRING_NAMES}".encode()
            submission = self._submit(call)
            self._transfer_numbers[path] += 1
            title = f"{call.label} of tensor number {number} from rank {source} to {destination} in {self._label}"
            terms = Terms(title, seconds, self._rank, transfer=True, source_rank=source)
            work = Work(self._engine, submission, call, terms, self._completer, self._forget_transfer)
            self._transfers[work] = None
        return work

    # --- the end ---------------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the group at once for all members; their calls fail."""
        with contextlib.suppress(FarandoleError):
            self._engine.revoke(self._rank, reason)
        self.leave(0.0)

    def leave(self, seconds: float) -> None:
        """Leave the group when all members do, or after a time limit. Later calls are refused."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._await_others(seconds)
        finally:
            with contextlib.suppress(FarandoleError):  # The world may have ended before.
                self._engine.leave(LEAVE_SECONDS)
            for work in (*self._collectives, *self._transfers):
                work.settle()
            self._completer.close()

    def close(self) -> None:
        """Refuse later calls without touching the engine: in a forked child its threads and connections are absent."""
        self._closed = True

    def _await_others(self, seconds: float) -> None:
        """Wait until all members are about to leave: calls among the others may still need this one's engine."""
        deadline = time.monotonic() + seconds
        with contextlib.suppress(FarandoleError):
            farewell = Submission((make_request(Kind.BARRIER, "farewell"),))
            self._engine.submit(farewell)
            try:
                while not self._engine.wait_for(farewell, WAIT_SLICE_SECONDS) and time.monotonic() < deadline:
                    pass
            finally:
                self._engine.release(farewell)

    # --- one call --------------------------------------------------------------------------------------------------

    def _prepare(self, label: str) -> None:
        """Check that calls are still possible, and drop works that are over although nobody has waited for them."""
        if self._closed:
            raise dist.DistBackendError(f"{label}: {self._label} has been destroyed in this process.")
        # They end in any order. With two for each new one, none stays for long, at a cost that never grows.
        for transfer in list(islice(self._transfers, 2)):
            self._transfers.move_to_end(transfer)
            if transfer.is_completed():
                transfer.settle()
                self._forget_transfer(transfer)
        while self._collectives and (oldest := self._collectives[0]).is_completed():
            oldest.settle()
            # Here too: the thread that saw its end may wait for this lock to do so.
            self._forget_collectives(oldest)

    def _submit(self, call: Call) -> Submission | None:
        if not call.requests:
            return None
        check_same("be on one device", [tensor.device for tensor in call.kept])
        submission = Submission(call.requests)
        submission.make_in_turn()
        try:
            self._engine.submit(submission)
        except InvalidRequestError:
            raise
        except FarandoleError as error:  # The group's world has ended.
            raise failure(f"{call.label} in {self._label}", error) from error
        return submission

    def _forget_transfer(self, work: Work) -> None:
        with self._lock:
            self._transfers.pop(work, None)

    def _forget_collectives(self, _: Work) -> None:
        with self._lock:
            while self._collectives and self._collectives[0].is_over():
                self._collectives.popleft()
