"""The decorator `run`: which way one worker takes from world to world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from farandole.errors import (
    EvictedError,
    FarandoleError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InvalidRequestError,
    MismatchError,
    StartError,
    StateLostError,
    WorkerLostError,
)
from farandole.worker.elastic.run_decorator import run, run_in
from farandole.worker.elastic.state import ObjectState

REMOVED = 1


class Recorded(ObjectState):
    """A state that writes down what is done with it."""

    def __init__(self, broadcast: Callable[[Any], Any] = lambda obj: obj, **attributes: Any) -> None:
        self.done: list[str] = []
        super().__init__(broadcast, lambda: 0, **attributes)

    def save(self) -> None:
        self.done.append("save")
        super().save()

    def restore(self) -> None:
        self.done.append("restore")
        super().restore()

    def sync(self) -> None:
        self.done.append("sync")
        super().sync()

    def reset(self) -> None:
        self.done.append("reset")


class Alone:
    """Worlds of one worker."""

    def __init__(self, state: Recorded) -> None:
        self._done = state.done
        self.next_fails: list[Exception] = []
        self.has_changed = False
        self.heirs = False
        self.departed: list[str] = []
        self.ends = False

    def go_on(self) -> bool:
        return not self.ends

    def enter(self) -> bool:
        self._done.append("enter")
        return self.has_changed

    def enter_next(self) -> None:
        self._done.append("next")
        if self.next_fails:
            raise self.next_fails.pop(0)

    def inherits(self) -> bool:
        return self.heirs

    def lost(self) -> list[str]:
        return self.departed

    def hold_state(self) -> None:
        self._done.append("hold")

    def done(self) -> Counter[str]:
        return Counter()

    def step_aside(self) -> None:
        raise AssertionError("nobody is ahead")

    def exchange(self, payload: bytes) -> list[bytes]:
        self._done.append("exchange")
        return [payload]


def scripted(*errors: Exception) -> Callable[..., Any]:
    """Return a training function that raises these errors, one in each call, and then returns its arguments."""
    left = list(errors)

    def train(state: Recorded, *args: Any, **kwargs: Any) -> Any:
        state.done.append("train")
        if left:
            raise left.pop(0)
        return (*args, kwargs)

    return train


BEGIN = ["save", "enter", "exchange", "sync", "save", "hold", "train"]
AGAIN = ["exchange", "sync", "save", "hold", "train"]
END = ["save", "exchange"]


def test_undisturbed() -> None:
    state = Recorded()
    assert run_in(Alone(state), scripted())(state, 1, by=2) == (1, {"by": 2})
    assert state.done == BEGIN + END


def test_a_world_that_is_not_what_it_looked_like() -> None:
    """A newcomer inspects the world when it begins to load its data, and enters it when it is ready."""
    state = Recorded()
    state.register_reset_callbacks([lambda: state.done.append("callback")])
    worlds = Alone(state)
    worlds.has_changed = True
    run_in(worlds, scripted())(state)
    assert state.done == ["save", "enter", "reset", "callback", *AGAIN, *END]


def test_a_broken_world() -> None:
    state = Recorded()
    state.register_reset_callbacks([lambda: state.done.append("callback")])
    run_in(Alone(state), scripted(HorovodInternalError("lost")))(state)
    assert state.done == [*BEGIN, "next", "restore", "reset", "callback", *AGAIN, *END]


def test_newcomers() -> None:
    state = Recorded()
    run_in(Alone(state), scripted(HostsUpdatedInterrupt()))(state)
    assert state.done == [*BEGIN, "next", "reset", *AGAIN, *END]


def test_workers_that_only_leave() -> None:
    state = Recorded()
    run_in(Alone(state), scripted(HostsUpdatedInterrupt(skip_sync=True)))(state)
    assert state.done == [*BEGIN, "next", "reset", "exchange", "save", "hold", "train", *END]


def test_what_a_callback_changes_is_not_undone_later() -> None:
    state = Recorded(lr=1.0)
    state.register_reset_callbacks([lambda: setattr(state, "lr", 0.5)])
    run_in(Alone(state), scripted(HostsUpdatedInterrupt(skip_sync=True)))(state)
    state.restore()
    assert state.lr == 0.5


def test_a_leave_once_is_not_a_leave_for_ever() -> None:
    state = Recorded()
    run_in(Alone(state), scripted(HostsUpdatedInterrupt(skip_sync=True), HorovodInternalError("lost")))(state)
    assert state.done[-len(AGAIN + END) :] == AGAIN + END


def test_what_was_loaded_before_it_began_is_kept() -> None:
    state = Recorded(epoch=0)
    state.epoch = 7  # From a checkpoint, say.
    run_in(Alone(state), scripted(HorovodInternalError("lost")))(state)
    assert state.epoch == 7


@pytest.mark.parametrize("error", [ValueError("a mistake"), MismatchError("another")])
def test_what_a_next_world_would_not_cure_is_the_callers(error: Exception) -> None:
    state = Recorded()
    with pytest.raises(type(error)) as raised:
        run_in(Alone(state), scripted(error))(state)
    assert raised.value is error
    assert state.done == BEGIN


def test_a_mismatch_that_ended_others_ends_who_heard_only_of_their_end() -> None:
    state = Recorded()
    worlds = Alone(state)

    def train(state: Recorded) -> None:
        state.done.append("train")
        worlds.departed = ["rank 0 (worker 0) raised farandole.errors.MismatchError: shapes [3] and [4]"]
        raise lost

    lost = WorkerLostError("rank 0 is lost", 0)
    with pytest.raises(MismatchError, match=r"rank 0 .* shapes \[3\] and \[4\]") as raised:
        run_in(worlds, train)(state)
    assert raised.value.__cause__ is lost
    assert state.done == [*BEGIN, "next"]


def test_a_worker_that_is_not_wanted_any_more_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    state = Recorded()
    worlds = Alone(state)
    worlds.next_fails = [EvictedError("it was asked to leave")]
    with pytest.raises(SystemExit) as exit_:
        run_in(worlds, scripted(HostsUpdatedInterrupt()))(state)
    assert exit_.value.code == 0
    assert capsys.readouterr().err == "farandole: this worker leaves the job: it was asked to leave\n"


def test_without_a_next_world_the_first_loss_is_the_cause() -> None:
    state = Recorded()
    worlds = Alone(state)
    worlds.next_fails = [StartError("too few workers")]
    lost = WorkerLostError("rank 1 is lost", 1)
    with pytest.raises(StartError, match="too few") as raised:
        run_in(worlds, scripted(lost))(state)
    assert raised.value.__cause__ is lost


def test_a_world_that_breaks_at_once() -> None:
    state = Recorded()
    worlds = Alone(state)
    worlds.next_fails = [WorkerLostError("rank 1 is lost", 1)]
    run_in(worlds, scripted(HostsUpdatedInterrupt(skip_sync=True)))(state)
    assert state.done == [*BEGIN, "next", "next", "restore", "reset", *AGAIN, *END]


def test_a_callback_that_meets_a_broken_world() -> None:
    state = Recorded()
    left = [WorkerLostError("rank 1 is lost", 1)]

    def callback() -> None:
        if left:
            raise left.pop()

    state.register_reset_callbacks([callback])
    run_in(Alone(state), scripted(HostsUpdatedInterrupt(skip_sync=True)))(state)
    assert state.done == [*BEGIN, "next", "reset", "next", "restore", "reset", *AGAIN, *END]


def test_a_function_that_leaves_the_world_at_its_end() -> None:
    state = Recorded()
    worlds = Alone(state)

    def train(state: Recorded) -> str:
        worlds.ends = True
        return "done"

    assert run_in(worlds, train)(state) == "done"
    assert state.done == BEGIN[:-1]


def test_nothing_begins_anew_where_something_was_trained() -> None:
    state = Recorded()
    worlds = Alone(state)
    worlds.heirs = True
    worlds.departed = ["rank 0 (worker 0) was killed by SIGKILL"]
    with pytest.raises(
        StateLostError, match=r"lost \(lost last: rank 0 \(worker 0\) was killed by SIGKILL\).*saved checkpoints"
    ):
        run_in(worlds, scripted())(state)
    assert "train" not in state.done


# --- jobs that are not elastic ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [WorkerLostError("rank 1 is lost", 1), HostsUpdatedInterrupt(), KeyError("x")])
def test_elsewhere_errors_are_the_callers(error: Exception) -> None:
    state = Recorded()
    with pytest.raises(type(error)) as raised:
        run(scripted(error))(state)
    assert raised.value is error
    assert state.done == ["sync", "save", "train"]


def test_it_is_a_decorator_too() -> None:
    @run
    def train(state: Recorded, *, by: int) -> int:
        """Train."""
        return by

    assert train(Recorded(), by=3) == 3
    assert (train.__name__, train.__doc__) == ("train", "Train.")


def test_errors_are_of_our_tree() -> None:
    assert issubclass(StateLostError, FarandoleError) and not issubclass(StateLostError, HorovodInternalError)


def test_what_is_not_a_function_or_not_a_state_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="takes a training function, but got 5"):
        run(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"is its state, such as TorchState\(...\), not 'model'"):
        run(lambda state: state)("model")
