"""NumPy's arrays of every layout and byte order: strided, transposed, read-only, big-endian, unaligned, numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs("numpy")


def layouts(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return writable arrays of these values [4, 6], float32."""
    wide = np.zeros((8, 12), np.float32)
    wide[::2, ::-2] = values
    unaligned = np.zeros(values.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(values.shape)
    unaligned[...] = values
    return {
        "contiguous": values.copy(),
        "transposed": values.T.copy().T,
        "strided, reversed": wide[::2, ::-2],
        "big-endian": values.astype(">f4"),
        "big-endian, transposed": values.T.astype(">f4").T,
        "unaligned": unaligned,
    }


def test_every_layout_in_every_form(world):
    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        base = np.arange(24, dtype=np.float32).reshape(4, 6)
        total = base * size + sum(range(size))

        def check(result: Any, wanted: np.ndarray) -> None:
            assert type(result) is np.ndarray and result.dtype == np.float32 and result.flags.c_contiguous
            np.testing.assert_array_equal(result, wanted)

        for name, array in layouts(base + rank).items():
            check(hvd.allreduce(array, op=hvd.Sum), total)
            check(hvd.grouped_allreduce([array, array], op=hvd.Sum)[1], total)
            check(hvd.synchronize(hvd.allreduce_async(array, op=hvd.Sum)), total)
            check(hvd.allgather(array), np.concatenate([base + each for each in range(size)]))
            check(hvd.broadcast(array, size - 1), base + size - 1)
            # All rows go to rank 0.
            rows, _ = hvd.alltoall(array, [4] + [0] * (size - 1))
            check(rows, np.concatenate([base + each for each in range(size)])[: 0 if rank else None])
            check(hvd.reducescatter(array, op=hvd.Sum), np.array_split(total, size)[rank])
            np.testing.assert_array_equal(array, base + rank, err_msg=name)
        for kind in ("plain", "async", "grouped"):
            for name, array in layouts(base + rank).items():
                before = array.dtype, array.strides
                if kind == "plain":
                    result = hvd.allreduce_(array, op=hvd.Sum)
                elif kind == "async":
                    result = hvd.synchronize(hvd.allreduce_async_(array, op=hvd.Sum))
                else:
                    result, _ = hvd.grouped_allreduce_([array, np.ones(3)], op=hvd.Sum)
                assert result is array and (array.dtype, array.strides) == before
                np.testing.assert_array_equal(array, total, err_msg=name)
                hvd.broadcast_(array, 0)

    world.run(body)


def test_numbers_and_lists_are_accepted_as_arrays(world):
    """Numbers and lists stand for arrays; what is read-only can be sent."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        mean = hvd.allreduce(rank + 0.5)
        assert mean.shape == () and mean.dtype == np.float64 and float(mean) == (size - 1) / 2 + 0.5
        assert float(hvd.allreduce(np.float32(rank), op=hvd.Max)) == size - 1
        np.testing.assert_array_equal(hvd.allgather([rank, rank]), np.repeat(np.arange(size), 2))
        read_only = np.broadcast_to(np.int16(2), (3, 2))
        np.testing.assert_array_equal(hvd.allreduce(read_only, op=hvd.Sum), np.full((3, 2), 2 * size))
        outputs = hvd.grouped_allreduce([rank, [1.0, 2.0]], op=hvd.Sum)
        assert int(outputs[0]) == sum(range(size)) and outputs[1].tolist() == [size, 2.0 * size]
        rows, counts = hvd.alltoall(np.arange(size), splits=np.ones(size, np.int64))
        assert rows.tolist() == [rank] * size and counts.dtype == np.int32 and counts.tolist() == [1] * size

    world.run(body)
