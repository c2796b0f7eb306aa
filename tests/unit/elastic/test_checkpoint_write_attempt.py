"""Ranks that write one checkpoint together, as threads: what each does when another one cannot, or is not there."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from waiting import until

from farandole.worker.elastic.checkpoint.background_writer import BackgroundWriter
from farandole.worker.elastic.checkpoint.manifest import Manifest, Record, describe, seal
from farandole.worker.elastic.checkpoint.store import AttemptId, Complete, Store
from farandole.worker.elastic.checkpoint.write_attempt import Attempt, AttemptDropped, Part, excuse, shard_name

WAIT_SECONDS = 30.0
ID = AttemptId("run", 1, 100)
Write = Callable[[Path], tuple[str, ...]]


def writes(rank: int, writers: int) -> Write:
    def write(folder: Path) -> tuple[str, ...]:
        name = shard_name(rank, writers, "bin")
        (folder / name).write_bytes(bytes([rank]) * 1000)
        return (name,)

    return write


def fails(code: int) -> Write:
    def write(folder: Path) -> tuple[str, ...]:
        (folder / "shard-00001-of-00002.tmp").write_bytes(b"half")
        raise OSError(code, os.strerror(code))

    return write


def part(
    rank: int,
    writers: int,
    write: Write | None = None,
    *,
    id_: AttemptId = ID,
    layout: str = "same",
    timeout: float = WAIT_SECONDS,
    wait_for_copies: Callable[[], None] = lambda: None,
) -> Part:
    manifest = Manifest(step=id_.step, epoch=0, world=writers, format="bin", files=(), tensors={}, plain=[1])
    return Part(id_, rank, writers, manifest, layout, wait_for_copies, write or writes(rank, writers), timeout)


def run_all(attempts: Sequence[Attempt]) -> list[Complete | AttemptDropped | None]:
    outcomes: list[Complete | AttemptDropped | None] = [None] * len(attempts)

    def run(index: int) -> None:
        try:
            outcomes[index] = attempts[index].run()
        except AttemptDropped as dropped:
            outcomes[index] = dropped

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(attempts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_SECONDS)
        assert not thread.is_alive()
    return outcomes


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize("writers", [1, 2, 5])
def test_all_shards_become_one_checkpoint(store: Store, writers: int) -> None:
    outcomes = run_all([Attempt(store, part(rank, writers)) for rank in reversed(range(writers))])
    assert isinstance(outcomes[-1], Complete) and outcomes[:-1] == [None] * (writers - 1)
    found = store.latest().found
    assert found is not None
    assert [file.name for file in found.manifest.files] == [shard_name(rank, writers, "bin") for rank in range(writers)]
    assert os.listdir(store.directory) == ["step-00000100"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("unlucky", [0, 1])
def test_a_rank_that_cannot_write_ends_the_attempt_at_once_and_says_why(store: Store, code: int, unlucky: int) -> None:
    outcomes = run_all([Attempt(store, part(rank, 2, fails(code) if rank == unlucky else None)) for rank in range(2)])
    assert os.strerror(code) in str(outcomes[0])
    if unlucky == 1:
        assert str(outcomes[0]).startswith("rank 1: ")
    assert store.latest().found is None
    assert not [path for path in store.directory.rglob("shard*")], "what was written is gone"
    run_all([Attempt(store, part(rank, 2, id_=AttemptId("run", 1, 101))) for rank in range(2)])
    assert os.listdir(store.directory) == ["step-00000101"]


def test_a_rank_that_does_not_come_is_waited_for_with_an_end(store: Store) -> None:
    (outcome,) = run_all([Attempt(store, part(0, 4, timeout=0.2))])
    assert str(outcome) == (
        f"shards of ranks 1, 2, 3 did not appear in {store.directory} within 0.2 s (check that it is on a file "
        "system that all hosts share)"
    )
    assert not list(store.directory.rglob("shard*"))


def test_ranks_whose_rank_0_does_not_come_take_their_shards_back(store: Store) -> None:
    outcomes = run_all([Attempt(store, part(rank, 3, timeout=0.1)) for rank in (1, 2)])
    assert all(isinstance(outcome, AttemptDropped) for outcome in outcomes)
    assert os.listdir(store.directory) == []


def test_different_states_are_refused(store: Store) -> None:
    outcomes = run_all([Attempt(store, part(0, 2)), Attempt(store, part(1, 2, layout="other"))])
    assert "rank 1 has different tensors than rank 0" in str(outcomes[0])
    assert store.latest().found is None


def test_whatever_a_writer_raises_drops_the_attempt(store: Store) -> None:
    def write(folder: Path) -> tuple[str, ...]:
        raise RuntimeError("odd")

    (outcome,) = run_all([Attempt(store, part(0, 1, write))])
    assert str(outcome) == "RuntimeError: odd" and os.listdir(store.directory) == []


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (outcome,) = run_all([Attempt(Store(tmp_path / "file"), part(0, 1))])
    assert "Not a directory" in str(outcome)


def test_copies_are_waited_for_although_nothing_can_be_written(tmp_path: Path) -> None:
    waits: list[str] = []
    (tmp_path / "file").touch()
    run_all([Attempt(Store(tmp_path / "file"), part(0, 1, wait_for_copies=lambda: waits.append("waited")))])
    assert waits == ["waited"]


def test_copies_that_fail_drop_the_attempt(store: Store) -> None:
    def fail() -> None:
        raise OSError("the copy has failed")

    (outcome,) = run_all([Attempt(store, part(0, 1, wait_for_copies=fail))])
    assert "the copy has failed" in str(outcome)


def test_shards_of_a_dead_job_are_not_mixed_in(store: Store) -> None:
    run_all([Attempt(store, part(1, 2, id_=AttemptId("dead", 1, 100), timeout=0.0))])
    stale = store.path_of(AttemptId("dead", 1, 100))
    stale.mkdir()
    (stale / shard_name(1, 2, "bin")).write_bytes(b"stale")
    run_all([Attempt(store, part(rank, 2)) for rank in range(2)])
    assert os.listdir(store.directory) == ["step-00000100"]
    assert (store.directory / "step-00000100" / shard_name(1, 2, "bin")).read_bytes() == b"\1" * 1000


@pytest.mark.parametrize("last", [0, 1])
def test_shards_of_a_killed_job_with_the_same_name_are_not_mixed_in(store: Store, last: int) -> None:
    stale = store.path_of(ID)
    stale.mkdir()
    (stale / "token").write_text("the killed job's")
    (stale / shard_name(1, 2, "bin")).write_bytes(b"stale")
    record = Record("same", (describe(stale / shard_name(1, 2, "bin")),), token="the killed job's")
    (stale / "record-00001.json").write_bytes(seal(record))

    attempts: list[Attempt] = []

    def come_last() -> None:
        until(lambda: attempts[1 - last].waiting, "the other rank has written its part")

    for rank in range(2):
        attempts.append(Attempt(store, part(rank, 2, wait_for_copies=come_last if rank == last else lambda: None)))
    run_all(attempts)
    found = store.latest().found
    assert found is not None and [file.size for file in found.manifest.files] == [1000, 1000]
    assert (found.path / shard_name(1, 2, "bin")).read_bytes() == b"\1" * 1000


# --- in the background ------------------------------------------------------------------------------------------------


class Told:
    """Takes what is said to the user."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, level: str, text: str) -> None:
        self.lines.append((level, text))


@pytest.fixture
def told() -> Told:
    return Told()


def test_trouble_is_told_once_and_its_end_too(store: Store, told: Told) -> None:
    background = BackgroundWriter(store, 2, told)
    for step, write in (
        (1, None),
        (2, fails(errno.ENOSPC)),
        (3, fails(errno.ENOSPC)),
        (4, fails(errno.EIO)),
        (5, None),
    ):
        background.start(part(0, 1, write, id_=AttemptId("run", 0, step)))
        assert background.wait(WAIT_SECONDS) == (write is None)
    assert [level for level, _ in told.lines] == ["info", "warning", "warning", "warning"]
    full, broken, again = (text for _, text in told.lines[1:])
    assert "step 2 was not written: No space left on device" in full
    assert f"the last good one, {store.directory / 'step-00000001'}, is kept, and training goes on" in full
    assert "step 4 was not written: Input/output error" in broken
    assert "step 5 is in" in again and "after the one before could not be written" in again
    assert sorted(os.listdir(store.directory)) == ["step-00000001", "step-00000005"]


def test_a_directory_that_is_none_does_not_stop_training(tmp_path: Path, told: Told) -> None:
    (tmp_path / "file").touch()
    background = BackgroundWriter(Store(tmp_path / "file"), 2, told)
    background.start(part(0, 1))
    assert not background.wait(WAIT_SECONDS)
    assert "Not a directory" in told.lines[0][1] and "there is no earlier one" in told.lines[0][1]


def test_an_attempt_whose_world_is_over_makes_room_for_the_next(store: Store, told: Told) -> None:
    background = BackgroundWriter(store, 2, told)
    background.start(part(0, 2))  # Rank 1 is dead.
    until((store.path_of(ID) / "record-00000.json").exists, "rank 0 waits for rank 1")
    assert background.busy_with(1) == ID
    until(lambda: background.busy_with(2) is None, "it waits no more")
    background.start(part(0, 1, id_=AttemptId("run", 2, 100)))
    assert background.wait(WAIT_SECONDS)
    assert os.listdir(store.directory) == ["step-00000100"]
    assert "the world has changed before all ranks had written their shards" in told.lines[0][1]


def test_a_rank_that_is_busy_lets_the_others_go_on_at_once(store: Store, told: Told) -> None:
    background = BackgroundWriter(store, 2, told)
    excuse(store, ID, 1, "the checkpoint of step 90 was still being written")
    background.start(part(0, 2))
    assert not background.wait(WAIT_SECONDS)
    assert "rank 1: the checkpoint of step 90 was still being written" in told.lines[0][1]


def test_rank_0_that_is_busy_lets_the_others_go_on_at_once(store: Store, told: Told) -> None:
    BackgroundWriter(store, 2, told).skip(ID, 0, AttemptId("run", 1, 90))
    assert told.lines[0][1].startswith("the checkpoint of step 100 is skipped: the checkpoint of step 90 was still")
    (outcome,) = run_all([Attempt(store, part(1, 2))])
    assert str(outcome) == "rank 0: the checkpoint of step 90 was still being written"
