"""Tables of worlds, sent as a whole or as a change of the table before."""

from __future__ import annotations

import random

import msgspec
import pytest

from farandole.base.wire.encoding import decode, encode
from farandole.base.wire.world_table import LatestTable, TableChange, WorldTable


def _world(generation: int, workers: list[int], before: tuple[int, ...] = (), stateless: int = -1) -> WorldTable:
    ranks = {worker: rank for rank, worker in enumerate(before) if worker != stateless}
    return WorldTable(
        generation,
        contacts=tuple(f"v1;id={worker:032x};tcp=10.0.0.1:{worker}" for worker in workers),
        hostnames=tuple(f"h{worker // 8}" for worker in workers),
        workers=tuple(workers),
        previous=tuple(ranks.get(worker, -1) for worker in workers),
        lost=("rank 1 (worker 1) was killed by SIGKILL",),
        training=generation,
    )


@pytest.mark.parametrize("seed", range(100))
def test_worker_reads_the_same_tables_from_changes_as_from_whole_ones(seed: int) -> None:
    rng = random.Random(seed)
    roster, worker = LatestTable(), LatestTable()
    workers: list[int] = []
    started = 0
    for generation in range(1, 8):
        before = tuple(workers)
        workers = sorted(rng.sample(workers, rng.randrange(len(workers) + 1)), key=workers.index)
        if rng.random() < 0.2:
            rng.shuffle(workers)
        newcomers = rng.randrange(0 if workers else 1, 5)
        workers += range(started, started + newcomers)
        started += newcomers
        table = _world(generation, workers, before, stateless=rng.choice((*before, -1)))
        whole, change = roster.replace(table)
        assert LatestTable().read(whole) == table
        assert worker.read(change) == table
        assert worker.digest == roster.digest


def test_change_after_a_loss_has_no_line_of_any_survivor() -> None:
    roster = LatestTable()
    whole, change = roster.replace(_world(1, list(range(1000))))
    assert change == whole
    lost = [*range(500), *range(501, 1000)]
    whole, change = roster.replace(_world(2, lost, tuple(range(1000))))
    assert len(whole) > 50_000
    assert len(change) < 300
    _, change = roster.replace(_world(3, [*lost, 1000], tuple(lost)))
    assert len(change) < 400
    assert decode(change, TableChange).rest.workers == (1000,)


def test_survivor_whose_line_differs_gets_the_whole_table() -> None:
    roster = LatestTable()
    roster.replace(_world(1, [0, 1, 2]))
    table = msgspec.structs.replace(_world(2, [1, 2], (0, 1, 2)), hostnames=("h0", "h0 (2)"))
    whole, change = roster.replace(table)
    assert change == whole


def _change_without_a_table() -> tuple[LatestTable, bytes]:
    roster = LatestTable()
    roster.replace(_world(1, [0, 1, 2]))
    return LatestTable(), roster.replace(_world(2, [0, 2], (0, 1, 2)))[1]


def _change_of_another_table() -> tuple[LatestTable, bytes]:
    worker, change = _change_without_a_table()
    worker.read(encode(_world(1, [3, 4, 5])))
    return worker, change


def _change_with_ranks_that_do_not_exist() -> tuple[LatestTable, bytes]:
    worker = LatestTable()
    worker.read(encode(_world(1, [0, 1, 2])))
    return worker, encode(TableChange(((0, 2**62),), ((-5, 2**62),), _world(2, []), b"?" * 16))


@pytest.mark.parametrize(
    "case", [_change_without_a_table, _change_of_another_table, _change_with_ranks_that_do_not_exist]
)
def test_change_that_does_not_fit_is_refused(case: object) -> None:
    assert callable(case)
    worker, change = case()
    before = worker.digest
    with pytest.raises(msgspec.DecodeError, match="it is a change"):
        worker.read(change)
    assert worker.digest == before


def test_worker_of_a_job_of_fixed_size_keeps_no_table() -> None:
    worker = LatestTable()
    table = WorldTable(1, ("a", "b"), ("h0", "h0"))
    assert worker.read(encode(table)) == table
    assert worker.digest == b""
