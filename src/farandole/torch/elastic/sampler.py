"""`ElasticSampler`: divides a dataset among the workers, and its remaining samples among the workers of each later
world.

An epoch has an *order* of all samples, the same on all ranks: shuffled by seed and epoch. The processed samples are
always at its beginning, because rank r takes the samples at r, r + size, r + 2 size and so on. So their number
describes them, and the rest is divided in a new world.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from farandole.worker.core.basics import rank, size
from farandole.worker.elastic.loader_arguments import check_flag


class ElasticSampler(Sampler[int]):
    """A sampler of this rank's share of the remaining samples of an epoch. A `TorchState` synchronizes it between
    ranks.

    All ranks get the same number of samples: if the rest cannot be divided equally, some samples are used twice.

    Attributes:
        epoch: the epoch.
        processed_num: the number of samples that all workers together have recorded.
        num_replicas: the number of workers among which the rest is divided.
        rank: this worker's rank among them.
        remaining_indices: the indices of the remaining samples, in their order.
        num_samples: the number of samples in this rank's share.
        total_size: the number of samples in all shares together.

    Example:
        >>> sampler = hvd.elastic.ElasticSampler(dataset)
        >>> state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
        >>> loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)
        >>> for index, batch in enumerate(loader):
        ...     loss = model(batch[0]).sum()
        ...     state.sampler.record_batch(index, 32)
        ...     state.commit()
        >>> state.sampler.set_epoch(1)
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Divide a dataset among the workers, after `init()`.

        Args:
            dataset: the dataset to sample from, whose length does not change.
            shuffle: whether to shuffle each epoch; otherwise samples keep their order.
            seed: the seed of the shuffling, the same on all ranks.
        """
        check_flag("shuffle", shuffle)
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all its samples. Call this when one has ended, not before one is continued."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every worker has processed a batch.

        Args:
            batch_idx: accepted for compatibility with Horovod.
            batch_size: the number of samples in this worker's batch.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of processed samples, as a state."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Return to the point at which the state was taken, and divide the rest."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the unprocessed samples among the workers of the current world."""
        self.num_replicas, self.rank = size(), rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Return this rank's samples."""
        rest = self.remaining_indices
        # The remaining samples are used several times if there are fewer samples than workers.
        self.indices = [rest[n % len(rest)] for n in range(self.rank, self.total_size, self.num_replicas)]
        return iter(self.indices)

    def __len__(self) -> int:
        """Return the number of this rank's samples."""
        return self.num_samples
