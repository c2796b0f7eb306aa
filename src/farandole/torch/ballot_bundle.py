"""The ballot: what a rank asks of all when a step counts, as one more gradient of the step.

It has the element type and the operation of the gradients, so that it travels in one bucket with them. Each question is
an element that the reduction leaves as it is while nobody asks, and changes as soon as one rank does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.dtype import Kind, Min, Product
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission
from farandole.torch.collectives import native_dtype
from farandole.torch.entries import Bundle
from farandole.torch.reduce_options import ReduceOptions


class BallotBundle(Bundle):
    """A bundle of no gradient."""

    __slots__ = ("_asked", "_name", "_of_all", "_of_this_rank", "_options", "_silence")

    def __init__(self, name: str, dtype: torch.dtype, options: ReduceOptions) -> None:
        """Make one that goes with gradients.

        Args:
            name: of its request, the same on all ranks.
            dtype: of the gradients, so that they share a bucket.
            options: how they are reduced.
        """
        super().__init__((), sparse_as_dense=False)
        self._options = options
        # Zero stays zero in sums, one in products.
        self._silence = 1.0 if options.op in (Min, Product) else 0.0
        self._asked: Sequence[bool] = ()
        self._of_this_rank = self._of_all = torch.empty(0, dtype=dtype if dtype.is_floating_point else torch.float32)
        self._name = name

    def fill_in(self, session: Session, asked: Sequence[bool]) -> None:
        """Say what this rank asks."""
        if self.submission is None:
            self._of_this_rank = self._of_this_rank.new_full((len(asked),), self._silence)
            self._of_all = torch.empty_like(self._of_this_rank)
            self._asked = (False,) * len(asked)
            self._prepare(session)
        if asked != self._asked:
            self._asked = asked
            for question, is_asked in enumerate(asked):
                self._of_this_rank[question] = 1.0 - self._silence if is_asked else self._silence

    @property
    def outcome(self) -> list[bool]:
        """What any rank has asked, once the ballot has travelled."""
        return [value != self._silence for value in self._of_all.tolist()]

    def _prepare(self, session: Session) -> None:
        request = make_request(
            Kind.ALLREDUCE,
            self._name,
            dtype=native_dtype(self._of_all),
            op=self._options.op,
            group=self._options.group(session),
            shape=self._of_all.shape,
            prescale=self._options.prescale,
            postscale=self._options.postscale,
            input=self._of_this_rank.data_ptr(),
            output=self._of_all.data_ptr(),
        )
        self.submission = Submission([request])
        self.nbytes = self._of_all.nbytes
