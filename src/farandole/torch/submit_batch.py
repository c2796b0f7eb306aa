"""Waves: gradients that travel together because a backward pass has finished them about the same time.

To tell all ranks of what is ready costs about as much for one gradient as for a hundred, and where every core computes
it is time taken from the computation. So what is ready waits for more, until there are `SUBMIT_BATCH_BYTES` of it; when
the backward pass ends, nothing waits any longer.

What travels together has no influence on results: the engine decides by each tensor's own size.
"""

from __future__ import annotations

from collections.abc import Sequence

from farandole.core.engine import Engine
from farandole.core.handle import Pending
from farandole.core.submission import Submission
from farandole.torch.entries import Bundle

# At memory speed this takes some hundred microseconds, a few times what an agreement does; it is what may be left to do
# when the backward pass ends.
SUBMIT_BATCH_BYTES = 2 << 20


class SubmitBatch(Pending):
    """A call of the requests of several bundles whose gradients lie in their places. It holds them, and so the places.

    It has a result even if requests have failed: each bundle, with its first error or None.
    """

    __slots__ = ("_bundles",)

    def __init__(self, engine: Engine, bundles: Sequence[Bundle]) -> None:
        """Take bundles that have a submission; it stays theirs."""
        parts = [bundle.submission for bundle in bundles if bundle.submission is not None]
        super().__init__(engine, Submission.joined(parts), lambda _: None)
        self._bundles = bundles

    def result(self) -> list[tuple[Bundle, Exception | None]]:
        """Return what became of each bundle, and release the requests."""
        if self._error is None:
            outcomes: list[tuple[Bundle, Exception | None]] = [(bundle, None) for bundle in self._bundles]
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
