"""Horovod's basics and process sets as its users and tests know them, by the parity page's section 1."""

from __future__ import annotations

from collections.abc import Callable

import drop_in
import horovod.torch as hvd
import pytest

Run = Callable[..., drop_in.Ran]

EXPORTED = """
    init shutdown is_initialized size local_size cross_size rank local_rank cross_rank
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built
    nccl_built ddl_built ccl_built cuda_built rocm_built sycl_built start_timeline stop_timeline
    add_process_set remove_process_set ProcessSet global_process_set
    Average Sum Adasum Min Max Product
    HorovodInternalError Compression DistributedOptimizer SyncBatchNorm
    allreduce allreduce_async allreduce_ allreduce_async_
    grouped_allreduce grouped_allreduce_async grouped_allreduce_ grouped_allreduce_async_ sparse_allreduce_async
    allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_
    alltoall alltoall_async
    reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async
    poll synchronize join barrier
    broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
""".split()


def test_every_name_that_horovod_exports() -> None:
    assert [name for name in EXPORTED if not hasattr(hvd, name)] == []
    assert [name for name in EXPORTED if name not in hvd.__all__] == []
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["size", "local_size", "cross_size", "rank", "local_rank", "cross_rank"])
def test_places_are_not_known_before_init(name: str) -> None:
    assert not hvd.is_initialized()
    hvd.shutdown()  # Does nothing.
    with pytest.raises(ValueError, match=r"^Horovod has not been initialized; use hvd\.init\(\)\."):
        getattr(hvd, name)()


def test_process_sets_before_init() -> None:
    assert hvd.global_process_set.process_set_id == 0
    assert str(hvd.ProcessSet([2, 0])) == "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    with pytest.raises(ValueError):
        hvd.ProcessSet(["zero"])
    assert hvd.ProcessSet([0]).size() is None and hvd.ProcessSet([0]).included() is None
    assert hvd.ProcessSet([0]) != hvd.ProcessSet([0])
    assert not hvd.remove_process_set(hvd.ProcessSet([0]))


STATIC_SETS = """
    import horovod.torch as hvd
    import pytest

    everyone = range(2)
    with pytest.raises(ValueError, match="duplicate"):
        hvd.init(process_sets=[hvd.ProcessSet([0]), hvd.ProcessSet([1]), hvd.ProcessSet([0])])
    first, second = hvd.ProcessSet([0]), hvd.ProcessSet([1])
    hvd.init(process_sets=[first, second])
    rank = hvd.rank()
    ids = hvd.mpi_ops._basics._get_process_set_ids_and_ranks
    assert ids() == {0: [0, 1], 1: [0], 2: [1]}
    assert (first.process_set_id, second.process_set_id) == (1, 2)
    assert str(second) == "ProcessSet(process_set_id=2, ranks=[1], mpi_comm=None)"
    assert (first.included(), second.included()) == (rank == 0, rank == 1)
    assert (first.size(), hvd.global_process_set.size(), hvd.global_process_set.rank()) == (1, 2, rank)
    with pytest.raises(ValueError, match="Process is not part of provided process set"):
        (second if rank == 0 else first).rank()
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([1, 0])
    assert hvd.remove_process_set(first)
    assert first.process_set_id is None
    again = hvd.add_process_set(hvd.ProcessSet([0]))
    assert ids() == {0: [0, 1], 2: [1], again.process_set_id: [0]}
    assert not hvd.remove_process_set(hvd.global_process_set)
    hvd.barrier()
    for _ in range(20):
        hvd.shutdown()
        assert not hvd.is_initialized()
        hvd.init(process_sets="dynamic")
        assert (hvd.rank(), hvd.size()) == (rank, 2)
    added = hvd.add_process_set([1])
    assert ids() == {0: [0, 1], added.process_set_id: [1]}
    assert added.process_set_id == 1
    hvd.shutdown()
    print("well")
"""


def test_process_sets_and_many_lives(horovodrun: Run) -> None:
    done = horovodrun("-np", "2", script=STATIC_SETS)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:well", "[1]<stdout>:well"]
