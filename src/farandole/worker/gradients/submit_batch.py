"""Submit batches: gradients that are submitted together because a backward pass has finished them at about the same
time.

Announcing one ready gradient to all ranks costs about as much as announcing a hundred, and if all cores are computing,
this time is taken from the computation. So ready gradients wait until there are `SUBMIT_BATCH_BYTES` of them; when the
backward pass ends, all of them are submitted.

Batching has no influence on results: the engine chooses algorithms by each tensor's own size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farandole.worker.core.engine import Engine
from farandole.worker.core.handle import Pending
from farandole.worker.core.submission import Submission
from farandole.worker.gradients.calls_in_flight import CallsInFlight, explained
from farandole.worker.gradients.context import Context
from farandole.worker.gradients.entry import Bundle

# At memory speed this takes some hundred microseconds, a few times what an agreement does; it is what may be left to do
# when the backward pass ends.
SUBMIT_BATCH_BYTES = 2 << 20

Outcome = tuple[Bundle, Exception | None]


class SubmitBatch(Pending):
    """A call of the requests of several bundles whose gradients are in views. It keeps the bundles, and so the views,
    alive.

    Its result, even if requests have failed, is each bundle with its first error or None.
    """

    __slots__ = ("_bundles",)

    def __init__(self, engine: Engine, bundles: Sequence[Bundle]) -> None:
        """Create a call of bundles that have submissions, which they still own."""
        parts = [bundle.submission for bundle in bundles if bundle.submission is not None]
        super().__init__(engine, Submission.joined(parts), lambda _: None)
        self._bundles = bundles

    def result(self) -> list[Outcome]:
        """Return the outcome of each bundle, and release the requests."""
        if self._error is None:
            outcomes: list[Outcome] = [(bundle, None) for bundle in self._bundles]
        else:
            assert self._submission is not None
            errors = iter(self._engine.errors(self._submission))
            outcomes = [
                (bundle, next(filter(None, [next(errors) for _ in range(submission.count)]), None))
                for bundle in self._bundles
                if (submission := bundle.submission) is not None
            ]
            self._error = None
        super().result()
        return outcomes


class BatchQueue:
    """Bundles that have been launched and wait for more, until they are submitted together.

    Gradients of several devices are finished by several threads, so a lock protects the queue.
    """

    def __init__(
        self, context: Context, calls: CallsInFlight, at_end_of_backward: Callable[[Callable[[], None]], bool]
    ) -> None:
        """Create an empty queue.

        Args:
            context: the context of the step.
            calls: the list that each submitted batch is added to.
            at_end_of_backward: the method of `GradientFrontEnd`.
        """
        self._context = context
        self._calls = calls
        self._at_end_of_backward = at_end_of_backward
        self._lock = threading.Lock()
        self._bundles: list[Bundle] = []
        self._nbytes = 0
        self._has_end = False
        """Whether the end of the current backward pass will submit the waiting bundles."""

    def add(self, bundle: Bundle) -> None:
        """Add a bundle whose gradients are in the memory that they are sent from."""
        bundle.launched = True
        with self._lock:
            self._bundles.append(bundle)
            self._nbytes += bundle.nbytes

    def submit_in_time(self) -> None:
        """Submit the waiting bundles if there are enough; otherwise make the end of the backward pass submit them."""
        if self._nbytes >= SUBMIT_BATCH_BYTES:
            self.submit()
        elif self._bundles and not self._has_end:
            self._has_end = self._at_end_of_backward(self._submit_last)
            if not self._has_end:
                self.submit()

    def submit(self) -> None:
        """Submit the waiting bundles."""
        session = self._context.session
        bundles = self.take()
        if not bundles or session is None:
            return
        generation, share = session.world.generation, self._context.share()
        for bundle in bundles:
            bundle.generation = generation
            bundle.weight(share)
        try:
            self._calls.begin(session, SubmitBatch(session.engine, bundles), _store)
        except Exception:
            for bundle in bundles:
                bundle.launched = False
            raise

    def take(self) -> list[Bundle]:
        """Remove and return the waiting bundles."""
        with self._lock:
            bundles, self._bundles = self._bundles, []
            self._nbytes, self._has_end = 0, False
        return bundles

    def _submit_last(self) -> None:
        with self._context.loss_left_to_finish():
            self.submit()


def _store(outcomes: Sequence[Outcome]) -> None:
    for bundle, error in outcomes:
        if error is None:
            for entry in bundle.entries:
                entry.take_back()
        else:
            bundle.broken = True
    for bundle, error in outcomes:
        if error is not None:
            raise explained(error, bundle)
