"""The loop of steps of an elastic training.

A step has a plan (see `step_plan`) and counts as a whole: if the world breaks in the middle of it, the survivors finish
it in the next world (see `recovery`).

Workers join between two steps. Then all members of a world are synchronized: newcomers get the state, and the progress
of the training (see `loop_worlds`). A large state is sent while the others continue training (see `shadows`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from farandole.errors import EvictedError, InvalidRequestError
from farandole.worker.core import basics
from farandole.worker.core.user_log import tell_user
from farandole.worker.core.worlds import goodbye
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.adaptive_batch import AdaptiveBatch
from farandole.worker.elastic.batch_adaptation import BatchAdaptation, GradientPasses
from farandole.worker.elastic.batches import KeepRate, RatePolicy
from farandole.worker.elastic.current_step import CurrentStep
from farandole.worker.elastic.framework import AdaptableLoader, Loader, Trained
from farandole.worker.elastic.loop_worlds import LoopWorlds
from farandole.worker.elastic.step_plan import Plan, Plans


class Loop:
    """The steps of a training, in a world that may change. Iterate over it once.

    Args:
        loader: the loader of the samples.
        trained: the model and all other trained state.
        epochs: the number of epochs, in all worlds together.
        rate: the policy for the learning rate as the world changes.
        adaptation: the adaptation of the batch to the noise of the gradients; None: the batch is not adaptive.
    """

    def __init__(
        self,
        loader: Loader,
        trained: Trained,
        *,
        epochs: int,
        rate: RatePolicy,
        adaptation: BatchAdaptation | None = None,
    ) -> None:
        self._loader = loader
        self._trained = trained
        self._session = basics.current()
        self._elastic = world_changes.is_elastic()
        self._session.trainings += 1
        self._number = self._session.trainings
        """The number of this loop among the script's loops, from 1."""
        self._has_begun = False
        self._step = CurrentStep()
        self._plans = Plans(loader)
        self._worlds = LoopWorlds(
            self._session,
            self._number,
            loader,
            trained,
            self._step,
            self._plans,
            epochs=epochs,
            rate=rate,
            adaptation=adaptation,
        )
        self._adaptation = adaptation
        self._progress = self._worlds.progress
        self._shadows = self._worlds.shadows

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of this worker.

        Raises:
            SystemExit: this worker has been removed from the job, and has reported it.
            InvalidRequestError: it is iterated over a second time, or the user's options cannot be used.
        """
        if self._has_begun:
            raise InvalidRequestError(
                "a loop over steps can be iterated over only once: make another one by steps(...)."
            )
        self._has_begun = True
        if self._is_past():
            tell_user(
                "info",
                f"the other workers have finished loop {self._number} over steps; this new one "
                "skips it, and gets the state in their present loop",
            )
            return
        try:
            yield from self._steps()
        except EvictedError as error:
            raise goodbye(error) from None
        finally:
            self._session.retry = None

    def stop(self) -> None:
        """End the training after this step, on all workers, whichever of them calls this.

        If this step's gradients have been submitted, because `backward()` has returned, it ends after the next step.
        """
        self._worlds.own_ballot.stopping = True

    @property
    def epoch(self) -> int:
        """The number of epochs that are complete."""
        return self._loader.ledger.epoch

    @property
    def epoch_begins(self) -> bool:
        """Whether this is the first step of an epoch; the same on all workers, including new ones."""
        return self._loader.ledger.cursor == 0

    @property
    def step(self) -> int:
        """The number of steps that count, since the loop began."""
        return self._progress.step

    @property
    def left_after_step(self) -> int:
        """The samples left in the epoch once this step counts, including those of ranks that were lost in it."""
        plan = self._step.plan
        return (
            self._loader.ledger.left if plan is None else self._loader.ledger.commit(plan.batch.shares, plan.lost).left
        )

    @property
    def accumulates(self) -> bool:
        """Whether another pass of the step follows: `AdaptiveBatch` processes large batches in several passes.

        `optimizer.step()` and `optimizer.zero_grad()` then do nothing. The body should skip everything else that it
        does once in a step, such as clipping or the step of a schedule.
        """
        return self._adaptation is not None and self._adaptation.is_partial

    @property
    def rate_factor(self) -> float:
        """The factor of the learning rate in this step; the loop has applied it to its optimizers."""
        return self._progress.factor

    @property
    def batch(self) -> int:
        """The samples of all workers together in a full step."""
        return sum(self._loader.counts(self._session.world.size))

    # --- steps -----------------------------------------------------------------------------------------------------

    def _steps(self) -> Iterator[Any]:
        worlds = self._worlds
        worlds.enter(world_changes.arrive if self._elastic else None)
        while True:
            if worlds.bring_state():
                continue
            if self._progress.is_over:
                break
            plan = self._next_plan()
            if plan is None:
                self._loader.next_epoch()
                continue
            yield from self._one_step(plan)
            if self._shadows.has_lost_world:
                worlds.begin_again()
                continue
            self._commit(plan)
            if self._step.outcome.change and not self._progress.stop:
                worlds.change()
        self._step.plan, self._step.counts = None, False
        self._finish_together()

    def _is_past(self) -> bool:
        """Return whether this worker joined when the others were in a later loop, in which it gets their state."""
        world = self._session.world
        return self._elastic and world.generation == 0 and self._number < world.training

    def _next_plan(self) -> Plan | None:
        plan = self._plans.next(self._session.world, self._shadows.count, self._shadows.include_this_rank)
        if plan is not None:
            self._progress.scale_rate(plan.working)
        return plan

    def _one_step(self, plan: Plan) -> Iterator[Any]:
        step = self._step
        step.begin(plan)
        while True:
            step.is_to_repeat = False
            step.share = 0.0 if self._shadows.include_this_rank else plan.share(self._session.world.rank)
            data = plan.batch.data
            if self._adaptation is not None:
                self._adaptation.plan(plan, self.step)
            if data is None:
                # Only running the loop's body shows what a step is, and whether it has calls that all ranks must make.
                data = self._loader.borrow(plan.batch)
            yield from [data] if self._adaptation is None else self._adaptation.parts(data)
            self._worlds.retry.body_has_run()
            if not step.is_to_repeat:
                break
        if self._shadows.has_lost_world:
            return
        self._check_gradients_are_used()
        if not step.counts:
            self._worlds.retry.vote()
        if self._adaptation is not None:
            self._adaptation.counts_now(plan, self._worlds.recovery)

    def _check_gradients_are_used(self) -> None:
        # The gradients would be lost with this worker, although their samples count.
        if self._trained.has_unused_gradients():
            raise InvalidRequestError(
                "the body of the loop has computed gradients and made no optimizer.step() with them. A round of this "
                "loop is a step, and counts as a whole: to accumulate gradients, use a larger batch, go through parts "
                "of it in the body, and give DistributedOptimizer(backward_passes_per_step=) the number of parts."
            )

    def _commit(self, plan: Plan) -> None:
        self._step.plan = None
        self._loader.commit(plan.batch, plan.lost)
        self._progress.step += 1
        self._save()

    def _finish_together(self) -> None:
        """Wait until all ranks know that the last step counts: a rank that has left cannot send it to the others."""
        self._step.is_last = self._worlds.own_ballot.at_end = True
        self._worlds.retry.vote()
        self._save()
        self._trained.checkpoints.wait()

    def _save(self) -> None:
        """Write a checkpoint if the ranks' ballots request one."""
        if not self._step.outcome.save:
            return
        self._worlds.own_ballot.checkpoint_is_written()
        # The others have begun theirs in the previous world, and parts of two worlds do not make a checkpoint.
        if not self._plans.as_before:
            self._trained.checkpoints.save(self._progress.kept(), self.step, self.epoch, self._session.world)


def loop_of(
    loader: AdaptableLoader,
    trained: Trained,
    *,
    epochs: int,
    rate: RatePolicy | None,
    batches: AdaptiveBatch | None,
    passes: Callable[[], GradientPasses],
) -> Loop:
    """Return the loop of `steps`, whose batch is adapted if the user has given a policy for that.

    Args:
        loader: the loader of the samples.
        trained: the model and all other trained state.
        epochs: the number of epochs, in all worlds together.
        rate: the user's policy for the learning rate; None: the rate does not change, unless the batch is adapted.
        batches: the policy that adapts the batch and the learning rate; None: the batch is not adapted.
        passes: creates the framework's part of the adaptation.

    Raises:
        InvalidRequestError: both rate and batches are given.
    """
    if batches is None:
        return Loop(loader, trained, epochs=epochs, rate=KeepRate() if rate is None else rate)
    if rate is not None:
        raise InvalidRequestError(
            "steps() got both rate and batches: omit rate, and use AdaptiveBatch(rate=...), because the learning rate "
            "depends on the noise."
        )
    adaptation = BatchAdaptation(batches, basics.current(), passes())
    loader.take_counts_from(adaptation)
    return Loop(loader, trained, epochs=epochs, rate=adaptation, adaptation=adaptation)


def require_kept_gradients(framework: str, running: str) -> None:
    """Check that gradients are kept until a step counts, for frameworks that cannot run a step again.

    Args:
        framework: the name of the framework, for the message.
        running: what may still be running when a step breaks: `function` or `graph`.

    Raises:
        InvalidRequestError: the job is elastic, and the settings say that gradients are not kept.
    """
    if world_changes.is_elastic() and not basics.current().settings.elastic_keep_gradients:
        raise InvalidRequestError(
            f"with {framework}, a broken step cannot be repeated, as its {running} may still be running: gradients "
            "have to be kept. Omit FARANDOLE_ELASTIC_KEEP_GRADIENTS=0."
        )
