"""Applies an `AdaptiveBatch` in a loop of steps: passes, measurements, and the batch of later steps.

Every few steps, when a step counts, all ranks exchange their measurements, by a call like those of the loop's body: if
the world breaks meanwhile, the call is repeated in the next one, or its result is copied from a rank that has it (see
`recovery`). So all ranks compute the same batch for the same step, whichever world plans it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from farandole.base.wire.rendezvous import Measures, RendezvousError
from farandole.base.wire.roster_client import RosterClient
from farandole.errors import InvalidRequestError
from farandole.worker.core.session import Session
from farandole.worker.elastic.adaptive_batch import Adaptation, AdaptiveBatch, Measured
from farandole.worker.elastic.noise_scale import Part
from farandole.worker.elastic.recovery import Recovery
from farandole.worker.elastic.step_plan import Plan


class GradientPasses(Protocol):
    """A framework's way to process the samples of a step in several passes, and to measure gradients."""

    can_split: bool
    """Whether a step may have several passes."""

    def split(self, data: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Split a batch into parts of these numbers of samples."""

    def begin(self, number: int, sizes: Sequence[int], *, measures: bool) -> None:
        """Begin a pass of a step.

        Args:
            number: the number of the pass, counted from 0.
            sizes: samples of each pass of the step. The gradient of the step is that of all passes.
            measures: whether the squared norms of its gradients are needed.
        """

    def squares(self) -> tuple[float, float, float]:
        """Return the squared norms of the step's gradients: of the first pass, of all passes of this rank, of the
        reduced one.
        """


class BatchAdaptation:
    """The adaptive batch of a loop: a policy for batches and for the learning rate (see `batches`).

    Attributes:
        policy: the user's policy.
        value: the state of the adaptation.
        is_partial: whether another pass of the step follows.
    """

    def __init__(self, policy: AdaptiveBatch, session: Session, passes: GradientPasses) -> None:
        """Create the adaptation, with the smallest batch.

        Raises:
            InvalidRequestError: the policy asks for several passes, which the framework does not support.
        """
        if policy.most_in_pass is not None and not passes.can_split:
            raise InvalidRequestError(
                "AdaptiveBatch(most_in_pass=...) is for PyTorch: here, the body of the loop takes the optimizer's step "
                "itself, so that a step is one pass. Omit it, and let max be what fits into memory on one worker."
            )
        self.policy = policy
        self.value = Adaptation(policy.min)
        self.is_partial = False
        self._session = session
        self._passes = passes
        self._sizes: Sequence[int] = (0,)
        self._is_due = False
        self._since = time.monotonic()
        self._blocked = session.engine.blocked_seconds
        self._steps = 0

    # --- as a policy -----------------------------------------------------------------------------------------------

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the samples of each rank in a full step, by rank."""
        return self.value.counts(world_size)

    def factor(self, global_batch: int, world_size: int) -> float:
        """Return the factor of the learning rate."""
        return self.policy.rate_factor(self.value.batch, self.value.noise)

    # --- in a step -------------------------------------------------------------------------------------------------

    def plan(self, plan: Plan, step: int) -> None:
        """Begin a step.

        Args:
            plan: the plan of the step.
            step: the number of steps that count so far.
        """
        self._is_due = (step + 1) % self.policy.every == 0
        samples = plan.batch.samples
        passes = self.policy.passes(samples)
        if self._is_due and _workers(plan) == 1 and samples > 1 and self._passes.can_split:
            passes = max(passes, 2)  # With one worker, only a part of its samples is a smaller batch.
        self._sizes = [len(range(number, samples, passes)) for number in range(passes)]
        self._passes.begin(0, self._sizes, measures=self._is_due)

    def parts(self, data: Any) -> Iterator[Any]:
        """Yield the parts of the step's batch, one for each pass."""
        if len(self._sizes) == 1:
            yield data
            return
        for number, part in enumerate(self._passes.split(data, self._sizes)):
            self.is_partial = number + 1 < len(self._sizes)
            self._passes.begin(number, self._sizes, measures=self._is_due)
            yield part

    def counts_now(self, plan: Plan, recovery: Recovery) -> None:
        """Record that the step counts. If a measurement is due, exchange it with the other ranks: a collective."""
        self.value = self.value.stepped(self.policy)
        self._steps += 1
        if not self._is_due:
            return
        payload = msgspec.msgpack.encode(self._measure(plan))
        answers = recovery.run(lambda: self._session.exchange("elastic.batch", payload))
        measured = [msgspec.msgpack.decode(answer, type=Measured) for answer in answers]
        now = self.value
        self.value = now.heard(self.policy, measured)
        if self._session.world.rank == 0 and self._session.settings.progress and self._session.roster is not None:
            self._report(now.batch, measured, self._session.roster)

    def _report(self, batch: int, measured: Sequence[Measured], roster: RosterClient) -> None:
        """Report the steps' times and the gradients' noise to the launcher, for the scheduler that allocates slots."""
        workers = sum(each.part.samples > 0 for each in measured)
        # The others wait for the slowest rank: its own waiting time is that of the allreduce itself.
        seconds, waited = max(each.seconds for each in measured), min(each.waited for each in measured)
        passes = len(self._sizes)
        noise = self.value.noise
        with suppress(RendezvousError):  # The launcher may have gone; the training continues.
            roster.report_measures(
                Measures(
                    self.policy.base_batch,
                    self.policy.max,
                    self.policy.most_in_pass or self.policy.max,
                    hosts=len(set(self._session.world.hostnames)),
                    workers=max(workers, 1),
                    local=batch / max(workers, 1) / passes,
                    step=max(seconds - waited, 0.0) / passes + waited,
                    sync=waited,
                    square=noise.square if noise.is_known else 0.0,
                    trace=noise.trace if noise.is_known else 0.0,
                    progress=self.value.progress,
                    on=tuple(sorted(set(self._session.world.hostnames))),
                )
            )

    def _measure(self, plan: Plan) -> Measured:
        first, own, whole = self._passes.squares()
        samples = plan.batch.samples
        total = sum(_samples_of(share) for rank, share in enumerate(plan.batch.shares) if rank not in plan.lost)
        part = Part(samples, own if samples else 0.0)
        if _workers(plan) == 1 and samples and len(self._sizes) > 1:
            part = Part(self._sizes[0], first)
        now = time.monotonic()
        seconds = (now - self._since) / self._steps
        blocked = self._session.engine.blocked_seconds
        waited = max(0.0, blocked - self._blocked) / self._steps
        self._since, self._blocked, self._steps = now, blocked, 0
        notices = self._session.notices
        return Measured(part, Part(total, whole), seconds, waited, 0 if notices is None else notices.scheduled_batch)


def _workers(plan: Plan) -> int:
    """Return the number of ranks that have samples in the step."""
    return sum(bool(share) for share in plan.batch.shares)


def _samples_of(share: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in share)
