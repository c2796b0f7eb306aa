"""Each worker's part of datasets and arrays."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import Nursery, World


def shards() -> dict[str, Any]:
    """Return what this worker reads of ten elements. Run by a worker."""
    import numpy as np
    import tensorflow as tf

    import farandole.tensorflow as hvd

    first = hvd.ProcessSet([0])
    hvd.init(process_sets=[first])
    numbers = tf.data.Dataset.range(10)
    unknown = numbers.filter(lambda number: number < 8)
    pairs = unknown.map(lambda number: (number, {"square": number * number}))

    def read(dataset: Any) -> list[int]:
        return [int(number) for number in dataset]

    seen: dict[str, Any] = {
        "known": read(hvd.shard(numbers)),
        "unknown": read(hvd.shard(unknown)),
        "endless": read(hvd.shard(numbers.repeat()).take(4)),
        "pairs": [(int(number), int(more["square"])) for number, more in hvd.shard(pairs)],
        "named": [int(each["a"]) for each in hvd.shard(unknown.map(lambda number: {"a": number}))],
        "shuffled": sorted(read(hvd.shard(numbers).shuffle(10))),
        "arrays": [each.tolist() for each in hvd.shard((np.arange(10), {"b": np.arange(20)[::2]})[0:1])],
    }
    try:
        seen["set"] = read(hvd.shard(numbers, process_set=first))
    except ValueError as error:
        seen["set"] = str(error)
    try:
        hvd.shard((np.arange(3), np.arange(4)))
    except ValueError as error:
        seen["unequal"] = str(error)
    hvd.shutdown()
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_every_element_is_read_once_and_all_read_as_many(tensorflow_nursery: Nursery, size: int) -> None:
    world = World(tensorflow_nursery, size)
    try:
        results = world.run(shards)
    finally:
        world.close()
    for rank, seen in enumerate(results):
        assert seen["known"] == seen["shuffled"] == list(range(rank, 10 // size * size, size))
        assert seen["unknown"] == seen["named"] == list(range(rank, 8 // size * size, size))
        assert seen["pairs"] == [(number, number * number) for number in seen["unknown"]]
        assert seen["endless"] == [(rank + turn * size) % 10 for turn in range(4)]
        assert seen["arrays"] == [seen["known"]]
        assert "different lengths: [3, 4]" in seen["unequal"]
    assert results[0]["set"] == list(range(10))
    assert all("is not in the process set" in seen["set"] for seen in results[1:])
