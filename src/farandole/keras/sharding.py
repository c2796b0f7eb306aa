"""Each worker's part of the data for `model.fit`."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TypeVar

import keras

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.shares import place_in, share_of
from farandole.worker.core.group import ProcessSet, global_process_set

Data = TypeVar("Data")


def shard(data: Data, process_set: ProcessSet = global_process_set) -> Data:
    """Return this worker's part of the data, which is as large as the others'; the remainder is omitted.

    Args:
        data: a `keras.utils.PyDataset`, whose batches are divided; a `tf.data.Dataset`, whose elements are divided; or
            arrays or tensors in any structure of tuples, lists and dicts, with one row for each sample. All workers
            have the same data, in the same order.
        process_set: the ranks that share the data.

    Raises:
        ValueError: this rank is not in the process set; the arrays have different lengths; or `data` has another type.

    Example:
        >>> x, y = hvd.shard((x, y))
        >>> history = model.fit(hvd.shard(dataset))
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None and isinstance(data, tensorflow.data.Dataset):
        return importlib.import_module("farandole.tensorflow").shard(data, process_set)
    if isinstance(data, keras.utils.PyDataset):
        return ShardedDataset(data, *place_in(process_set))
    arrays = keras.tree.flatten(data)
    if not arrays or not all(hasattr(array, "__getitem__") and hasattr(array, "shape") for array in arrays):
        raise InvalidRequestError(
            "shard() takes a keras.utils.PyDataset, a tf.data.Dataset, or arrays in tuples, lists and dicts, not "
            f"{type(data).__name__}. A DataLoader of PyTorch gets a torch.utils.data.DistributedSampler instead; in a "
            "generator, skip the samples of other workers."
        )
    own = share_of((len(array) for array in arrays), process_set)
    return keras.tree.map_structure(lambda array: array[own], data)


class ShardedDataset(keras.utils.PyDataset):
    """This worker's batches of a dataset: every n-th batch of n workers."""

    def __init__(self, dataset: Any, place: int, size: int) -> None:
        """Create the part of worker `place` of `size`."""
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset, self._place, self._size = dataset, place, size

    @property
    def num_batches(self) -> int | None:
        """The number of batches of each worker; None if the dataset is infinite."""
        total = self._dataset.num_batches
        return None if total is None else int(total) // self._size

    def __len__(self) -> int:
        """Return the number of batches of each worker."""
        return self.num_batches or 0

    def __getitem__(self, index: int) -> Any:
        """Return a batch."""
        return self._dataset[index * self._size + self._place]

    def on_epoch_begin(self) -> None:
        """Notify the whole dataset."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Notify the whole dataset."""
        self._dataset.on_epoch_end()
