"""Rows of a Ray dataset, each read exactly once in an epoch, for elastic loaders.

Ray's own shards of a dataset are assigned once; the replacement of a worker would begin its shard again. Here the
blocks stay in Ray's object store, and each worker reads the rows that the ledger of the job assigns to it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.parquet.row_groups import Columns
from farandole.parquet.source import GroupedRows, chosen_columns
from farandole.ray.use_ray import use_ray

# Seconds that a block may take to arrive, which Ray may have to compute again.
_BLOCK_SECONDS = 600.0


class DatasetSource(GroupedRows):
    """The rows of a Ray dataset, for an `ElasticLoader` of PyTorch, TensorFlow or JAX.

    It is created in the driver, which computes the dataset; the result stays in Ray's object store as long as the
    driver runs. Pass it as an argument to the function that `farandole.ray.run`, Ray Train or `RayExecutor` runs. A row
    is read exactly once in an epoch, by one worker, in a world of any size and however it changes. Each worker has
    about `window` + 1 blocks in memory.

    Args:
        dataset: a dataset of `ray.data`.
        columns: the names of the columns to read; None: all.
        seed: the seed of the shuffled order, the same on all ranks.
        shuffle: whether rows have another order in each epoch: blocks are shuffled, and rows within each window.
        window: the number of blocks whose rows are mixed.

    Raises:
        ValueError: an argument is not valid, or the dataset has no rows.

    Example:
        >>> source = DatasetSource(ray.data.read_parquet("s3://bucket/train"), shuffle=True)  # doctest: +SKIP
        >>> loader = hvd.elastic.ElasticLoader(source, global_batch_size=256)  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: Any,
        columns: Sequence[str] | None = None,
        seed: int = 0,
        shuffle: bool = False,
        *,
        window: int = 2,
    ) -> None:
        super().__init__(seed, shuffle, window)
        if not hasattr(dataset, "materialize"):
            raise InvalidRequestError(f"dataset must be a dataset of ray.data, but is {dataset!r:.80}.")
        self._kept = dataset.materialize()
        blocks = [entry for bundle in self._kept.iter_internal_ref_bundles() for entry in bundle.blocks]
        # Older versions of Ray describe a block by a pair.
        described = [(block.ref, block.metadata) if hasattr(block, "ref") else block for block in blocks]
        self._blocks = [reference for reference, _ in described]
        self._columns = list(chosen_columns(columns, self._kept.columns() or []))
        self._rows = [metadata.num_rows for _, metadata in described]
        if not len(self):
            raise InvalidRequestError("the dataset has no rows.")

    def _open(self) -> Callable[[int], Columns]:
        from ray.data.block import BlockAccessor

        def read(number: int) -> Columns:
            block = use_ray().get(self._blocks[number], timeout=_BLOCK_SECONDS)
            columns: Columns = BlockAccessor.for_block(block).to_numpy(self._columns)
            return columns

        return read

    def __getstate__(self) -> dict[str, Any]:
        from ray import cloudpickle

        # References keep their owner's address only in Ray's own pickles.
        return {**super().__getstate__(), "_kept": None, "_blocks": cloudpickle.dumps(self._blocks)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Workers of `farandole.ray.run` are processes beside Ray's, which are not connected yet.
        if not use_ray().is_initialized():
            use_ray().init(address="auto", log_to_driver=False)
        self.__dict__.update(state, _blocks=pickle.loads(state["_blocks"]))
