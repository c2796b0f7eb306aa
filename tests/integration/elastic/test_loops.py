"""Several loops in one script, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from elastic_worlds import ElasticJob
from worlds import WorkerFailed, wait_until


def learn(folder: str, loops: int, waits_at: int) -> list[tuple[int, str]]:
    """Go through some loops, each with a model of its own; return the steps of each, and what it has come to.

    In that step of the second one, wait until somebody is to come.
    """
    import hashlib
    import time
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current
    from farandole.worker.elastic import world_changes

    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(current().settings.rank)  # A worker that gets no state has wrong values.
    results = []
    dataset = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(12, 2))
    loader = hvd.elastic.ElasticLoader(dataset, global_batch_size=4)
    begun = []
    for number in range(1, loops + 1):
        model = torch.nn.Linear(2, number)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
        loop = hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer)
        taken = 0
        for (x,) in loop:
            taken += 1
            begun += [loop.epoch] if loop.epoch_begins else []
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            Path(folder, f"{current().settings.rank}-in-{number}").touch()
            while number == 2 and loop.step == waits_at and world_changes.pending_change() is None:
                time.sleep(0.01)
        digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
        results.append((taken, digest))
    # With one loader, the epochs go on.
    assert begun == sorted(set(begun)), begun
    hvd.shutdown()
    return results


def test_each_loop_makes_all_workers_alike(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    job = make_job()
    workers = job.add(3)
    job.start(learn, str(tmp_path), 3, -1)
    results = job.collect(workers)
    assert [taken for taken, _ in results[0]] == [6, 6, 6]
    assert results[0] == results[1] == results[2]


def test_a_newcomer_goes_to_the_loop_that_the_others_are_in(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    job = make_job()
    workers = job.add(2)
    job.start(learn, str(tmp_path), 3, 2)
    wait_until(lambda: (tmp_path / "0-in-2").exists() and (tmp_path / "1-in-2").exists())
    (newcomer,) = job.add()
    job.start(learn, str(tmp_path), 3, -1, workers=[newcomer])
    one, other, new = job.collect([*workers, newcomer])
    assert one == other
    assert new[0][0] == 0 < new[1][0] < new[2][0] == 6
    assert [digest for _, digest in new[1:]] == [digest for _, digest in one[1:]]


def test_a_loop_is_gone_through_once(make_job: Callable[..., ElasticJob]) -> None:
    def twice() -> None:
        import torch

        import farandole.torch as hvd

        hvd.init()
        model = torch.nn.Linear(2, 1)
        loop = hvd.elastic.steps(hvd.elastic.ElasticLoader(torch.ones(4, 2), batch_size=4), model=model)
        for _ in range(2):
            for _ in loop:
                pass

    job = make_job()
    (worker,) = job.add()
    job.start(twice)
    with pytest.raises(WorkerFailed, match="a loop over steps can be iterated over only once"):
        job.workers[worker].receive()
