"""How groups begin and end: mistakes, timeouts, losses, destruction, children, launchers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# A loss is noticed within the failure deadline of 5 s; the rest is for a busy machine.
NOTICED_SECONDS = 10.0


@pytest.fixture
def fresh(groups: Any) -> Iterator[Any]:
    """Worlds that the test may break."""
    worlds = []

    def make(size: int, timeout: float = 60.0) -> Any:
        worlds.append(groups.fresh(size, timeout))
        return worlds[-1]

    yield make
    for world in worlds:
        world.broken = True
        world.close()


# --- mistakes ------------------------------------------------------------------------------------------------


def _disagree() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    first = rank == 0

    def failed(*words: str) -> Any:
        return pytest.raises(dist.DistBackendError, match=".*".join(map(re_escape, words)))

    with failed("all_reduce", "rank 0", "[3]", "[4]"):
        dist.all_reduce(torch.ones(3 if first else 4))
    with failed("float32", "float64"):
        dist.all_reduce(torch.ones(3, dtype=torch.float32 if first else torch.float64))
    with failed("rank 0", "1"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.SUM if first else dist.ReduceOp.MAX)
    with failed("rank 0", "1"):
        dist.broadcast(torch.ones(3), 0 if first else 1)
    with failed("allreduce", "broadcast"):
        dist.all_reduce(torch.ones(3)) if first else dist.broadcast(torch.ones(3), 0)
    with failed("rank 1 of the group sent 3 elements", "has 2"):
        dist.all_gather([torch.empty(3), torch.empty(2), torch.empty(3)][:size], torch.ones(3))
    with failed("rank 0 of the group sent 2 elements", "has 1"):
        dist.all_to_all([torch.empty(1) for _ in range(size)], [torch.empty(2) for _ in range(size)])
    if rank < 2:
        with failed("rank 0", "1"):
            dist.send(torch.ones(2), 1) if first else dist.recv(torch.ones(3), 0)
    future = dist.all_reduce(torch.ones(3 if first else 4), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="all_reduce"):
        future.then(lambda done: done.value()).wait()

    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 2


def re_escape(text: str) -> str:
    import re

    return re.escape(text)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_disagree_all_fail_and_the_group_goes_on(groups: Any, size: int) -> None:
    groups.run(size, _disagree)


def _refused() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:  # Alone: what is refused does not count as a call, so nobody waits for it.
        for words, call in (
            (f"{size} times", lambda: dist.all_gather_single(torch.empty(5), torch.ones(4))),
            (f"{size} times", lambda: dist.reduce_scatter_single(torch.empty(5), torch.ones(4))),
            ("BAND", lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)),
            ("cannot reduce", lambda: dist.all_reduce(torch.ones(1).to(torch.float8_e5m2))),
            ("any source", lambda: dist.recv(torch.ones(1))),
            ("sum to", lambda: dist.all_to_all_single(torch.empty(4), torch.ones(4), [1] * size, [2] * size)),
            ("equally", lambda: dist.all_to_all_single(torch.empty(1), torch.ones(1))),
            ("on meta", lambda: dist.all_reduce(torch.ones(1, device="meta"))),
            ("sparse", lambda: dist.broadcast(torch.ones(1).to_sparse(), 0)),
            ("both sender", lambda: dist.isend(torch.ones(1), 0)),
        ):
            with pytest.raises(ValueError, match=words):
                call()
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 2


def test_wrong_calls_are_refused(groups: Any) -> None:
    groups.run(2, _refused)


# --- time and losses -----------------------------------------------------------------------------------------


def _reduce(seconds: float | None = None) -> tuple[str, float]:
    """Return the error of an all_reduce, and how long it took."""
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    started = time.monotonic()
    try:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.wait() if seconds is None else work.wait(timedelta(seconds=seconds))
    except dist.DistBackendError as error:
        return str(error), time.monotonic() - started
    return "", time.monotonic() - started


@pytest.mark.parametrize("own", [False, True], ids=["of the group", "of the wait"])
def test_a_timeout_ends_the_group(fresh: Any, own: bool) -> None:
    world = fresh(2, timeout=60.0 if own else 3.0)
    ((text, seconds),) = world.run(_reduce, 3.0 if own else None, ranks=[0])
    assert "rank 0 has waited 3.0 s for all_reduce, collective number 0" in text
    assert 3.0 <= seconds < 3.0 + NOTICED_SECONDS
    for rank in (0, 1):
        ((text, seconds),) = world.run(_reduce, ranks=[rank])
        assert "rank 0 has waited 3.0 s for all_reduce" in text and seconds < 3.0  # It has not waited anew.


def test_a_killed_worker_fails_the_others_at_once(fresh: Any) -> None:
    world = fresh(3)
    world.start(_reduce, ranks=[0, 2])
    world.workers[1].kill(signal.SIGKILL)
    for text, seconds in world.collect(ranks=[0, 2]):
        assert "rank 1 was lost" in text and seconds < NOTICED_SECONDS
    ((text, seconds),) = world.run(_reduce, ranks=[0])
    assert "rank 1 was lost" in text and seconds < NOTICED_SECONDS


def _lose_in_backward(prepared: str) -> str:
    import os
    import signal
    import time
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(torch.ones(1, 3)).sum()
    if dist.get_rank() == 0:
        Path(prepared).touch()
    else:
        # The last of the collectives in which the model is made may end later over there.
        while not Path(prepared).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    return str(caught.value)


def test_a_loss_is_what_ddp_raises(fresh: Any, tmp_path: Path) -> None:
    world = fresh(2)
    world.start(_lose_in_backward, str(tmp_path / "prepared"))
    assert "rank 1 was lost" in world.collect(ranks=[0])[0]


# --- the end -------------------------------------------------------------------------------------------------


def _leave_early() -> list[float]:
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    group = dist.new_group()
    tensor = torch.zeros(2)
    if rank == 1:
        ready = torch.zeros(1)
        dist.recv(ready, 0)  # In the other group: rank 0 is about to leave this one.
        dist.send(torch.ones(2), 2, group=group)
    elif rank == 2:
        dist.recv(tensor, 1, group=group)
    else:
        dist.send(torch.ones(1), 1)
    dist.destroy_process_group(group)
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(tensor, group=group)
    return tensor.tolist()


def test_rank_that_leaves_early_waits_for_the_transfers_of_others(groups: Any) -> None:
    assert groups.run(3, _leave_early)[2] == [1.0, 1.0]


def _again(path: str) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.destroy_process_group()
    store = dist.FileStore(path, 2)
    for _ in range(2):
        limit = timedelta(seconds=30)
        dist.init_process_group("farandole", store=store, rank=rank, world_size=2, timeout=limit)
        group = dist.group.WORLD
        works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
        future = works[0].get_future()
        dist.destroy_process_group()
        # The other rank had asked for the same, so all of it was done before the end.
        assert all(work.is_completed() for work in works)
        assert future.wait()[0].tolist() == [2.0] * 3
        with pytest.raises(dist.DistBackendError, match="destroyed"):
            group.allreduce([torch.ones(1)])


def test_groups_can_be_made_again_with_one_store(fresh: Any, tmp_path: Path) -> None:
    """The store remembers the first time, which must not be taken for the second."""
    fresh(2).run(_again, str(tmp_path / "store"))


def _abort() -> str:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.group.WORLD.abort()
        return ""
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(1))
    return str(caught.value)


def test_abort_fails_the_others(fresh: Any) -> None:
    assert "rank 0 aborted process group" in fresh(2).run(_abort)[1]


def _missing(path: str) -> str:
    from datetime import timedelta

    import torch.distributed as dist

    from farandole.torch.distributed import ProcessGroup

    store = dist.FileStore(path, 2)
    with pytest.raises(RuntimeError) as caught:
        ProcessGroup(store, 0, 2, timedelta(seconds=0.5))
    return str(caught.value)


def test_missing_rank_is_named(groups: Any, tmp_path: Path) -> None:
    assert "waiting for rank 1 of the group" in groups.run(2, _missing, str(tmp_path / "store"))[0]


# --- children ------------------------------------------------------------------------------------------------


def _children() -> None:
    import os

    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError:
            dist.destroy_process_group()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    total = torch.zeros(2)
    for batch in DataLoader(torch.arange(8.0).reshape(4, 2), num_workers=1):
        total += batch[0]
        dist.all_reduce(batch)
    assert total.tolist() == [12.0, 16.0]
    dist.barrier()


def test_children_leave_the_parents_group_alone(groups: Any) -> None:
    groups.run(2, _children)


# --- launchers -----------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("farandole")  # torch finds it by itself where farandole is installed
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
model(torch.ones(1, 3)).sum().backward()
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {tensor.item()}\\n")
if "destroy" in sys.argv:
    dist.destroy_process_group()
"""
LAUNCHERS = {
    "farandole": ["-m", "farandole", "run", "-np", "2", sys.executable],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
}


@pytest.mark.parametrize(("launcher", "arguments"), [("farandole", []), ("torchrun", ["destroy"])])
def test_launchers(launcher: str, arguments: list[str], tmp_path: Path) -> None:
    """With and without destroying the group at the end: either way without a word."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(script), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2: 3.0" in done.stdout and "rank 1 of 2: 3.0" in done.stdout
    assert not done.stderr.strip(), done.stderr
