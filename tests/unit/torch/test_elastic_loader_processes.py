"""The worker processes of an elastic loader, and the random numbers that it takes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from loader_datasets import Numbers, numbers, rest_of_epoch
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    get_worker_info,
)

from farandole.torch.elastic.loader import ElasticLoader
from farandole.worker.elastic.ledger import Ledger

# What torch says about worker processes on a machine with one core, and Python about those that are forked.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]


class WhoReads(Numbers):
    """Its samples are the processes that read them."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_a_change_of_the_world_keeps_the_worker_processes() -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=2, num_workers=2)
    readers = set()
    for number, world in enumerate([1, 1, 1, 2, 2, 3, 1, 1]):
        batch = loader.next(world, 0)
        assert batch is not None
        readers.update(numbers(batch))
        loader.commit(batch, lost=[world - 1] if number == 5 else ())
    loader.next_epoch()
    batch = loader.next(1, 0)
    assert batch is not None
    readers.update(numbers(batch))
    assert len(readers) == 2
    loader.close()


class Gated(Numbers):
    """Waits before its third sample, and tells what it reads."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.gate = multiprocessing.Event()
        self.told = multiprocessing.Queue()  # type: ignore[var-annotated]

    def __getitem__(self, index: int) -> int:
        self.told.put(index)
        if index == 2:
            assert self.gate.wait(60)
        return index


def test_outdated_batches_are_not_waited_for() -> None:
    dataset = Gated(1000)
    loader = ElasticLoader(dataset, batch_size=1, shuffle=False, num_workers=1, prefetch_factor=4)
    batch = loader.next(1, 0)
    assert batch is not None
    assert [dataset.told.get(timeout=60) for _ in range(3)] == [0, 1, 2]
    loader.abort(batch)
    loader.ledger = Ledger(1000, cursor=500, shuffle=False)
    dataset.gate.set()
    batch = loader.next(1, 0)
    assert batch is not None
    assert numbers(batch) == [500]
    assert dataset.told.get(timeout=60) == 500, "3 and 4 were asked for, but are outdated"
    loader.close()


class FailsOnce(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.failed = multiprocessing.Event()

    def __getitem__(self, index: int) -> int:
        if index == 5 and not self.failed.is_set():
            self.failed.set()
            raise KeyError("sample 5")
        return index


@pytest.mark.parametrize("num_workers", [0, 2])
def test_error_of_a_dataset_reaches_the_caller_and_no_sample_is_lost(num_workers: int) -> None:
    loader = ElasticLoader(FailsOnce(10), batch_size=2, shuffle=False, num_workers=num_workers)
    found = []
    with pytest.raises(KeyError, match="sample 5" if num_workers == 0 else "in DataLoader worker process"):
        while (batch := loader.next(1, 0)) is not None:
            found.append(numbers(batch))
            loader.commit(batch)
    assert found + rest_of_epoch(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    loader.close()


class Seeds(Numbers):
    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        assert info is not None and isinstance(info.dataset, Seeds)
        assert info.seed == torch.initial_seed()
        return info.seed


def test_worker_processes_are_seeded_as_by_torch() -> None:
    torch.manual_seed(5)
    by_torch = {int(seed) for seed in DataLoader(Seeds(4), num_workers=2)}
    torch.manual_seed(5)
    loader = ElasticLoader(Seeds(4), batch_size=1, num_workers=2)
    assert {seed for batch in rest_of_epoch(loader) for seed in batch} == by_torch
    loader.close()


def set_up(process: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.length = 1000 + process


class SetUp(Numbers):
    def __getitem__(self, index: int) -> int:
        return self.length


def test_worker_init_fn_runs_in_worker_processes() -> None:
    loader = ElasticLoader(SetUp(4), batch_size=1, num_workers=2, worker_init_fn=set_up)
    assert rest_of_epoch(loader) == [[1000], [1001], [1000], [1001]]
    loader.close()


def test_worker_processes_may_be_spawned() -> None:
    dataset = TensorDataset(torch.arange(10))
    loader = ElasticLoader(
        dataset,
        batch_size=4,
        shuffle=False,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=torch.utils.data.default_collate,
    )
    batch = loader.next(1, 0)
    assert batch is not None
    assert batch.data[0].tolist() == [0, 1, 2, 3]
    loader.close()


def ended(pid: int) -> bool:
    """Return whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("end", ["close", "forget"])
def test_worker_processes_end_with_the_loader(end: str) -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=1, num_workers=2)
    batches = []
    for _ in range(2):
        batch = loader.next(1, 0)
        assert batch is not None
        batches.append(batch)
        loader.commit(batch)
    readers = [numbers(batch)[0] for batch in batches]
    assert len(set(readers)) == 2
    if end == "close":
        loader.close()
    else:
        del loader
    assert all(map(ended, readers)), "when it is gone, so are they"


def test_closed_loader_can_continue() -> None:
    loader = ElasticLoader(Numbers(8), batch_size=4, shuffle=False, num_workers=1)
    batch = loader.next(1, 0)
    assert batch is not None
    loader.commit(batch)
    loader.close()
    assert rest_of_epoch(loader) == [[4, 5, 6, 7]]
    loader.close()


def test_new_worker_processes_take_the_place_of_one_that_was_killed() -> None:
    loader = ElasticLoader(WhoReads(1000), batch_size=1, num_workers=1)
    batch = loader.next(1, 0)
    assert batch is not None
    killed = numbers(batch)[0]
    # Where torch's handler of this signal raises is up to chance. What remains is what a step runs into.
    by_torch = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.kill(killed, signal.SIGKILL)
        errors = []
        while numbers(batch) == [killed]:
            try:
                batch = loader.next(1, 0)
                assert batch is not None
                loader.commit(batch)
            except (RuntimeError, OSError, EOFError) as error:
                errors.append(error)
        assert 1 <= len(errors) <= 2
        loader.close()
    finally:
        signal.signal(signal.SIGCHLD, by_torch)


PARENT = r"""
import os, time
from farandole.torch.elastic.loader import ElasticLoader

class Stuck:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        os.write(1, f"{os.getpid()}\n".encode())  # a line in one piece: both readers write to this pipe
        time.sleep(600)

ElasticLoader(Stuck(), batch_size=1, num_workers=2).next(1, 0)
"""


def test_worker_processes_do_not_outlive_their_parent() -> None:
    """Not even those that are at something, and would not look for it themselves."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        readers = [int(parent.stdout.readline()) for _ in range(2)]
        assert not any(map(ended, readers))
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(ended, readers)))


def test_only_the_first_batch_draws_random_numbers() -> None:
    loader = ElasticLoader(Numbers(100), batch_size=4)
    loader.next(1, 0)
    before = torch.get_rng_state()
    for world in (2, 3, 1):
        batch = loader.next(world, 0)
        assert batch is not None
        loader.commit(batch)
    assert torch.equal(torch.get_rng_state(), before)


def test_first_batch_draws_as_many_random_numbers_as_torch() -> None:
    torch.manual_seed(5)
    next(iter(DataLoader(Numbers(100), batch_size=4)))
    by_torch = torch.get_rng_state()
    torch.manual_seed(5)
    ElasticLoader(Numbers(100), batch_size=4).next(1, 0)
    assert torch.equal(torch.get_rng_state(), by_torch)


def test_a_profile_shows_the_reading_as_with_torch() -> None:
    """What is read with a profile and without it are the same batches."""
    loader = ElasticLoader(Numbers(100), batch_size=4, seed=2)
    found = []
    for profiled in (False, True, True, False, True, False):
        with torch.autograd.profiler.profile(enabled=profiled) as seen:
            batch = loader.next(1, 0)
        assert batch is not None
        found.append(numbers(batch))
        loader.commit(batch)
        if profiled:
            assert any(event.name.startswith("enumerate(DataLoader)") for event in seen.function_events or ())
    assert found == rest_of_epoch(ElasticLoader(Numbers(100), batch_size=4, seed=2))[: len(found)]
