"""States: what is committed, given back and made alike; what a worker hears of changes."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from farandole.errors import FarandoleError, HostsUpdatedInterrupt
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.state import ObjectState, State
from farandole.worker.elastic.world_changes import Change

REMOVED, ADDED, MIXED = 1, 2, 3


def make(**attributes: Any) -> ObjectState:
    return ObjectState(lambda obj: obj, lambda: 0, **attributes)


class Roster:
    """What the roster has said."""

    change: Change | None = None
    coming = 0
    broken = False


@pytest.fixture
def roster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Roster]:
    roster = Roster()
    monkeypatch.setattr(world_changes, "is_elastic", lambda: True)
    monkeypatch.setattr(world_changes, "pending_change", lambda: roster.change)
    monkeypatch.setattr(world_changes, "coming", lambda: roster.coming)
    monkeypatch.setattr(world_changes, "is_broken", lambda: roster.broken)
    yield roster


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_attributes_are_what_it_is_made_with() -> None:
    state = make(epoch=3, best=None)
    assert (state.epoch, state.best) == (3, None)


def test_restore_goes_back_to_the_last_commit() -> None:
    state = make(epoch=0)
    state.epoch = 1
    state.restore()
    assert state.epoch == 0
    state.epoch = 2
    state.commit()
    state.epoch = 3
    state.restore()
    state.restore()
    assert state.epoch == 2


def test_what_changes_in_place_goes_back_too() -> None:
    state = make(losses=[1.0], best={"epoch": 1})
    for _ in range(2):
        state.losses.append(0.5)
        state.best["epoch"] = 7
        state.restore()
        assert (state.losses, state.best) == ([1.0], {"epoch": 1})


def test_what_cannot_be_copied_is_kept() -> None:
    lock = threading.Lock()
    state = make(lock=lock, epoch=0)
    state.epoch = 1
    state.commit()
    state.epoch = 2
    state.restore()
    assert state.lock is lock and state.epoch == 1


def test_other_attributes_are_none_of_its_business() -> None:
    state = make(epoch=0)
    state.note = "mine"
    state.restore()
    assert state.note == "mine"


@pytest.mark.parametrize("name", ["sync", "commit", "register_reset_callbacks"])
def test_an_attribute_hides_no_method(name: str) -> None:
    with pytest.raises(ValueError, match=f"cannot have an attribute '{name}'.*Choose another name"):
        make(**{name: 1})


def test_after_a_sync_it_goes_back_to_what_was_synced() -> None:
    state = ObjectState(lambda obj: {"epoch": 5, "losses": [1]}, lambda: 1, epoch=0, losses=[])
    state.epoch = 2
    state.sync()
    assert (state.epoch, state.losses) == (5, [1])
    state.epoch = 6
    state.losses.append(2)
    state.restore()
    assert (state.epoch, state.losses) == (5, [1])


def test_what_is_synced_is_what_rank_0_has_now() -> None:
    """Not what it has committed: a model, which is in its place, would be ahead of it."""
    sent: list[Any] = []

    def broadcast(obj: Any) -> Any:
        sent.append(copy.deepcopy(obj))
        return obj

    state = ObjectState(broadcast, lambda: 0, epoch=0)
    state.epoch = 4
    state.sync()
    assert sent == [{"epoch": 4}]
    state.restore()
    assert state.epoch == 4


def test_nothing_needs_no_collective() -> None:
    def refuse(obj: Any) -> Any:
        raise AssertionError("a collective")

    ObjectState(refuse, lambda: 0).sync()


def test_a_state_without_contents_says_so() -> None:
    state = State(lambda obj: obj, lambda: 0)
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()


# --- new worlds ------------------------------------------------------------------------------------------------------


def test_callbacks_come_after_the_reset_in_their_order() -> None:
    done: list[str] = []

    class Mine(ObjectState):
        def reset(self) -> None:
            done.append("reset")

    state = Mine(lambda obj: obj, lambda: 0)
    state.register_reset_callbacks([lambda: done.append("first"), lambda: done.append("second")])
    state.register_reset_callbacks([lambda: done.append("third")])
    state.on_reset()
    assert done == ["reset", "first", "second", "third"]


def test_without_a_world_nothing_is_heard() -> None:
    state = make(epoch=0)
    state.commit()
    state.check_host_updates()
    assert state._host_messages.empty()


@pytest.mark.parametrize(("change", "skip"), [((0, 1), True), ((1, 0), False), ((2, 1), False)])
def test_a_change_interrupts_the_next_commit(roster: Roster, change: tuple[int, int], skip: bool) -> None:
    state = make(epoch=0)
    state.epoch = 1
    state.commit()
    roster.change = Change(*change, "why")
    assert not state._host_messages.empty()
    state.epoch = 2
    with pytest.raises(HostsUpdatedInterrupt) as interrupt:
        state.commit()
    assert interrupt.value.skip_sync is skip
    state.epoch = 3
    state.restore()
    assert state.epoch == 2  # It was committed before.


def test_newcomers_that_come_together_are_one_change(roster: Roster) -> None:
    state = make()
    roster.change, roster.coming = Change(1, 0, "one waits"), 1
    state.commit()
    roster.change, roster.coming = Change(2, 0, "two wait"), 0
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_a_newcomer_does_not_wait_for_others_for_long(roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.worker.elastic.state.GATHER_SECONDS", 0.05)
    state = make()
    roster.change, roster.coming = Change(1, 0, "one waits"), 1
    state.commit()
    time.sleep(0.06)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_who_is_to_leave_does_not_wait_for_those_that_come(roster: Roster) -> None:
    state = make()
    roster.change, roster.coming = Change(1, 1, "one waits and one leaves"), 1
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_workers_that_come_are_no_reason_to_wait(roster: Roster) -> None:
    state = make()
    roster.coming = 1
    state.commit()


def test_a_script_that_has_seen_workers_come_turns_to_them_at_its_next_commit(roster: Roster) -> None:
    state = make()
    roster.coming = 2
    assert not state._host_messages.empty()

    def arrive() -> None:
        roster.change, roster.coming = Change(2, 0, "two wait"), 0

    timer = threading.Timer(0.05, arrive)
    timer.start()
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    timer.join()


@pytest.mark.parametrize("end", ["none comes", "the world breaks", "a minute passes"])
def test_a_script_that_has_seen_workers_come_does_not_wait_for_ever(
    roster: Roster, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    if end == "a minute passes":
        monkeypatch.setattr("farandole.worker.elastic.state.PROMISE_SECONDS", 0.05)
    state = make()
    roster.coming = 1
    assert not state._host_messages.empty()

    def happen() -> None:
        roster.coming = 0 if end == "none comes" else 1
        roster.broken = end == "the world breaks"

    timer = threading.Timer(0.05, happen)
    timer.start()
    state.commit()
    timer.join()


def test_a_change_is_heard_until_a_world_answers_it(roster: Roster) -> None:
    state = make()
    roster.change = Change(1, 0, "why")
    for _ in range(2):
        with pytest.raises(HostsUpdatedInterrupt):
            state.check_host_updates()
        state.on_reset()
    roster.change = None
    state.check_host_updates()


def test_what_others_tell_interrupts_once() -> None:
    state = make()
    for results, skip in [([REMOVED, REMOVED], True), ([REMOVED, ADDED], False), ([MIXED], False)]:
        for result in results:
            state.on_hosts_updated(0, result)
        state.on_reset()  # Nothing is lost on the way to another world.
        with pytest.raises(HostsUpdatedInterrupt) as interrupt:
            state.check_host_updates()
        assert interrupt.value.skip_sync is skip
        state.check_host_updates()


def test_an_interrupt_is_no_failed_collective() -> None:
    assert issubclass(HostsUpdatedInterrupt, FarandoleError) and issubclass(HostsUpdatedInterrupt, RuntimeError)
    assert not HostsUpdatedInterrupt().skip_sync and HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert "next world" in str(HostsUpdatedInterrupt())
