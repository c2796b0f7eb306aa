"""Tensors of more than 2^31 elements: counts are 64-bit all the way.

Takes a minute and some 14 GB of memory, so it has to be asked for: FARANDOLE_LARGE_TESTS=1.
"""

from __future__ import annotations

import os

import pytest
from worlds import World

ROWS = 2**31 + 7
NEEDED_BYTES = 14 * 2**30
MINUTES = 60.0


def available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(10 * MINUTES)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "reduce"])
def test_more_elements_than_32_bits_can_count(nursery, transport, kind, monkeypatch):
    if not os.environ.get("FARANDOLE_LARGE_TESTS"):
        pytest.skip("set FARANDOLE_LARGE_TESTS=1 to run it")
    if available_bytes() < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GiB of free memory")
    monkeypatch.setattr("worlds.ANSWER_SECONDS", 5 * MINUTES)

    def body(kind, rows):
        import torch

        import farandole.torch as hvd

        hvd.init()
        rank = hvd.rank()

        def tensor(count):
            """Each element is its position modulo 100, plus the rank."""
            pattern = torch.arange(100, dtype=torch.int8) + rank
            return pattern.repeat(count // 100 + 1)[:count]

        places = {0: 0, 2**31 - 1: 47, 2**31 + 5: 53}
        if kind == "allreduce":
            output = hvd.allreduce_(tensor(rows), op=hvd.Max)
            assert all(int(output[place]) == value + 1 for place, value in places.items())
        elif kind == "broadcast":
            output = hvd.broadcast_(tensor(rows), 1)
            assert all(int(output[place]) == value + 1 for place, value in places.items())
        elif kind == "reduce":
            output = hvd.reduce_(tensor(rows), 0, op=hvd.Max)
            assert all(int(output[place]) == value + 1 for place, value in places.items())
        elif kind == "allgather":
            output = hvd.allgather(tensor(rows - 5 if rank == 0 else 5))
            assert output.shape == (rows,) and output[-5:].tolist() == [1, 2, 3, 4, 5]
            assert int(output[2**31 - 1]) == 47
        elif kind == "alltoall":
            # Rank 1 gets nearly everything.
            output, received = hvd.alltoall(tensor(rows), [1, rows - 1] if rank == 0 else [3, 5])
            assert received.tolist() == ([1, 3] if rank == 0 else [rows - 1, 5])
            assert rank == 0 or (int(output[2**31 - 2]) == 47 and output[-5:].tolist() == [4, 5, 6, 7, 8])
        else:
            output = hvd.reducescatter(tensor(rows), op=hvd.Max)
            assert output.shape == (rows // 2 + 1 - rank,)
            assert rank == 0 or int(output[2**31 - 1 - (rows // 2 + 1)]) == 48
        hvd.shutdown()

    world = World(nursery, 2, {"FARANDOLE_TRANSPORT": transport})
    try:
        world.run(body, kind, ROWS)
    finally:
        world.close()
