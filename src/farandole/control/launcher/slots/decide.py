"""The decisions of a job: one pure function of its roster and its slots.

The roster's rules decide which workers are in the world, and the slot rules decide which slots get a worker. Each
reacts to the other's decisions: the roster expects a worker that is started, and the slot rules react to a new world.
Jobs of fixed size have their own rules (`fixed_rules`) instead of the slot rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.slots import fixed_rules, slot_rules
from farandole.control.launcher.slots.job_events import (
    FINISHED,
    SUCCEEDED,
    Action,
    CannotGoOn,
    DrainWorkers,
    EndedTogether,
    EndJob,
    Event,
    Fact,
    HostLost,
    Say,
    SlotAction,
    SlotEvent,
    StartWorker,
    StopAsked,
    StopWorkers,
    TakenOver,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import GRACE_SECONDS, End, JobState, Step, living, size_of
from farandole.control.launcher.slots.phrases import named, others
from farandole.control.launcher.slots.worker_rules import will_start, world_began
from farandole.control.roster import elastic, fixed
from farandole.control.roster import events as roster_events
from farandole.control.roster.decide import decide as decide_roster
from farandole.control.roster.events import (
    Drained,
    Evicted,
    Expected,
    Finished,
    FinishedTogether,
    HoldOver,
    Leaves,
    Promised,
    Resized,
    Suspected,
)

Decision = tuple[JobState, tuple[Action, ...], tuple[str, ...]]


def decide(state: JobState, event: Event, now: float) -> Decision:
    """Return the next state, the actions in their order, and the reasons, one line each.

    Args:
        state: the state of the job.
        event: what has happened.
        now: seconds on the clock of the state.

    Example:
        >>> from farandole.control.launcher.slots.job_events import HostReady, HostsChanged
        >>> from farandole.control.launcher.slots.job_state import SlotPolicy
        >>> state = JobState(SlotPolicy(), elastic.ElasticState(elastic.Limits(1, 1)))
        >>> state, actions, _ = decide(state, HostsChanged((("h1", 1),)), 0.0)
        >>> state, actions, reasons = decide(state, HostReady("h1"), 0.1)
        >>> actions[0], state.roster.expected
        (StartWorker(worker=0, label='h1', slot=0), frozenset({0}))
        >>> reasons[:2]
        ('host h1 is ready; worker 0 starts', 'worker 0 on h1 is started')
    """
    deciding = _Deciding(state, now)
    if isinstance(event, StopAsked):
        deciding.stop(event)
    elif isinstance(event, CannotGoOn):
        deciding.end(EndJob(event.why, event.hint))
    elif isinstance(event, TakenOver):
        deciding.take_over()
    elif isinstance(state.roster, fixed.FixedState):
        deciding.fixed(event)
    else:
        deciding.elastic(event)
    return deciding.state, tuple(deciding.actions), tuple(filter(None, deciding.reasons))


def _is_news(before: JobState, state: JobState) -> bool:
    """Return whether the slot rules have to react to a decision of the roster."""
    return (state.generation, state.finishing) != (before.generation, before.finishing)


class _Deciding:
    """One decision that is being made.

    Attributes:
        state: the state that was decided so far.
        actions, reasons: the actions and reasons so far.
    """

    def __init__(self, state: JobState, now: float) -> None:
        self.state = state
        self.actions: list[Action] = []
        self.reasons: list[str] = []
        self._now = now
        self._news: deque[JobState] = deque()
        """The previous states of those decisions of the roster to which the slot rules have not reacted yet."""

    def fixed(self, event: Fact) -> None:
        """Decide what follows from an event in a job of fixed size."""
        if isinstance(event, WorkerEnded):
            self._tell_roster(Finished(event.worker, event.in_words))
        elif isinstance(event, EndedTogether):
            self._tell_roster(FinishedTogether(tuple(Finished(each.worker, each.in_words) for each in event.ends)))
        elif isinstance(event, HostLost) and event.workers and not event.local:
            how = f"was lost with its host: {event.why}"
            self._tell_roster(FinishedTogether(tuple(Finished(worker, how) for worker in event.workers)))
        elif isinstance(event, roster_events.Event):
            self._tell_roster(event)
            return
        self._carry_on(fixed_rules.apply(self.state, event, self._now))

    def elastic(self, event: Fact) -> None:
        """Decide what follows from an event in an elastic job."""
        if isinstance(event, WorkerEnded):
            self._workers_ended((event,))
        elif isinstance(event, EndedTogether):
            self._workers_ended(event.ends)
        elif isinstance(event, HostLost):
            self._host_lost(event)
        elif isinstance(event, Leaves):
            # The slot rules first: whether another worker is started instead decides whether this one may leave.
            self._slots(event)
            self._roster(event)
        elif isinstance(event, Resized):
            self._roster(event)
            self._slots(event)
        elif isinstance(event, HoldOver):
            # First what is due for the slots at the same time: a worker may start, or the job end for a better reason.
            self._slots(Tick())
            self._roster(event)
        elif isinstance(event, roster_events.Event):
            self._roster(event)
        else:
            self._slots(event)
        self._promise_nothing()

    def stop(self, event: StopAsked) -> None:
        """End the job for the user; a second call ends it at once."""
        end = self.state.end
        if end is not None and end.stop_code is not None:
            self._end(EndJob("", grace=0.0))
            return
        workers = count(size_of(self.state), "worker")
        self.actions.append(Say(f"farandole: {event.why}: ending {workers}; repeat to kill them"))
        self._end(EndJob("", grace=event.grace, stop_code=event.code))

    def take_over(self) -> None:
        """React to the state that another launcher has left, and continue to end the job if it was being ended."""
        self._roster(Promised(self.state.elastic_roster.promised))  # This changes nothing by itself.
        self._slots(Tick())
        self._promise_nothing()
        if self.state.end is not None:
            self._end(EndJob("", grace=self.state.end.grace))

    # --- the two sides of an elastic job ---------------------------------------------------------------------------

    def _workers_ended(self, ends: Sequence[WorkerEnded]) -> None:
        left = self.state.elastic_roster.exiting
        finished = (Finished(each.worker, each.in_words, each.how not in (SUCCEEDED, FINISHED)) for each in ends)
        self._roster(FinishedTogether(tuple(finished)))
        done = (each.how == SUCCEEDED and (each.worker in left or each.returned) for each in ends)
        ends = [replace(each, how=FINISHED) if is_done else each for each, is_done in zip(ends, done, strict=True)]
        self._slots(EndedTogether(tuple(ends)))

    def _host_lost(self, event: HostLost) -> None:
        self._slots(event)
        if not event.workers or self.state.end is not None:
            return
        rest = others(self.state, event.workers, "goes on", "go on")
        lost = f"host {event.label} is lost, with {named(event.workers)}: {event.why}; {rest}"
        self.actions.append(Say(f"warning: {lost}"))
        self._roster(Suspected(event.workers, f"was lost with its host: {event.why}"))

    def _roster(self, event: roster_events.Event) -> None:
        """Apply the roster's rules to an event, and then the slot rules to the result."""
        self._tell_roster(event)
        self._hear_news()

    def _tell_roster(self, event: roster_events.Event) -> None:
        before = self.state
        roster, actions, reason = decide_roster(before.roster, event)
        self.state = replace(before, roster=roster)
        self.reasons.append(reason)
        for action in actions:
            if isinstance(action, roster_events.End):
                self.end(EndJob(action.reason))
            else:
                self.actions.append(action)
        if isinstance(roster, elastic.ElasticState) and _is_news(before, self.state):
            self._news.append(before)

    def _hear_news(self) -> None:
        """Apply the slot rules to decisions of the roster."""
        while self._news:
            before, state = self._news.popleft(), self.state
            if state.generation != before.generation:
                self._follow(world_began(state, before.world, self._now))
            if state.finishing != before.finishing:
                words = "workers have finished, as far as is known" if state.finishing else "no worker has finished"
                self._follow((self.state, [], words))

    def _slots(self, event: SlotEvent) -> None:
        """Apply the slot rules to an event."""
        step = slot_rules.note(self.state, event, self._now)
        self._follow(step if self.state.end is None else (*step[:2], "the job is ending"))
        self._hear_news()

    def _follow(self, step: Step) -> None:
        """Accept a step of the slot rules and, unless the job is being ended, all that follows from it."""
        if self.state.end is None:
            self._carry_on(slot_rules.settle(step, self._now))
        else:
            self.state = step[0]
            self.reasons.append(step[2])

    def _carry_on(self, step: Step) -> None:
        """Accept a step of the slot rules or the fixed rules, and inform the roster about its actions."""
        self.state, actions, reason = step
        self.reasons.append(reason)
        # Before any worker is asked to leave: the last holder of the state stays for workers that will be started.
        if (
            isinstance(self.state.roster, elastic.ElasticState)
            and not self.state.roster.promised
            and self._will_start()
        ):
            self._tell_roster(Promised(True))
        for action in actions:
            self._pass_on(action)

    def _pass_on(self, action: SlotAction) -> None:
        if isinstance(action, EndJob):
            self.end(action)
        elif isinstance(action, DrainWorkers):
            self._drain(action)
        else:
            self.actions.append(action)
            if isinstance(action, StartWorker):
                self._tell_roster(Expected(action.worker, action.label))
            elif isinstance(action, StopWorkers):
                for worker in action.workers:
                    self._tell_roster(Evicted(worker, action.why))

    def _drain(self, action: DrainWorkers) -> None:
        """Let members of the world leave at the end of their step. Other workers have no step, and are ended."""
        world = frozenset(self.state.world)
        members = tuple(worker for worker in action.workers if worker in world)
        others = tuple(worker for worker in action.workers if worker not in world)
        if members:
            self._tell_roster(Drained(members, action.why))
        if others:
            self.actions.append(StopWorkers(others, action.why, GRACE_SECONDS))

    def _will_start(self) -> bool:
        return self.state.end is None and will_start(self.state, self._now)

    def _promise_nothing(self) -> None:
        """Withdraw a promise of more workers once they have been started, or will not be."""
        while self.state.end is None and self.state.elastic_roster.promised and not self._will_start():
            self._roster(Promised(False))

    # --- the end ---------------------------------------------------------------------------------------------------

    def end(self, action: EndJob) -> None:
        """End the job; no-op if an elastic job is being ended already."""
        if isinstance(self.state.roster, fixed.FixedState):
            self._end(action)
        elif self.state.end is None:
            left = living(self.state)
            if action.why and left:
                self.actions.append(Say(f"farandole: the job ends, with {count(len(left), 'worker')}: {action.why}"))
            self._end(action)

    def _end(self, action: EndJob) -> None:
        """End the job; if it is being ended already, its grace period can only become shorter."""
        grace = GRACE_SECONDS if action.grace is None else action.grace
        end = self.state.end or End(self._now, grace, action.why, action.hint, action.worker)
        code = action.stop_code if end.stop_code is None else end.stop_code
        self.state = replace(self.state, end=replace(end, grace=min(end.grace, grace), stop_code=code))
        self.actions.append(replace(action, grace=grace))
