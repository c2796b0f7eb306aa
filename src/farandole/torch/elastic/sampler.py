"""`ElasticSampler`: deals a dataset out to the workers there are, and what is left of it to those that are there then.

An epoch has an *order* of all samples, the same on all ranks: shuffled by seed and epoch. What was processed is always
a head of it, as rank r takes every sample at r, r + size, r + 2 size and so on. So one number says it all, and a new
world deals out the rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from farandole.worker.core.basics import rank, size


class ElasticSampler(Sampler[int]):
    """A sampler of this rank's share of what an epoch has left. A `TorchState` keeps it alike on all ranks.

    All ranks get equally many samples: where they do not come out even, some of the rest are dealt out again.

    Attributes:
        epoch: the epoch.
        processed_num: the number of samples that all workers together have recorded.
        num_replicas: the number of workers among which the rest was shared out.
        rank: this worker's rank among them.
        remaining_indices: the rest, in its order, as it was shared out.
        num_samples: this rank's share of it.
        total_size: all ranks' shares together.

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
        """Deal out a dataset, after `init()`.

        Args:
            dataset: the dataset to sample from, whose length does not change.
            shuffle: shuffle each epoch; otherwise samples keep their order.
            seed: the seed of the shuffling, the same on all ranks.
        """
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. Call this when one has ended, and not before one is gone on with: all its samples are new."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that every worker has processed a batch.

        Args:
            batch_idx: accepted, as Horovod has it.
            batch_size: samples in this worker's batch.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return which samples were processed."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go back, or on, to where that state was taken, and deal out the rest."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal out what is not processed to the workers of the current world."""
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
        # The remaining samples are used several times if there are fewer of them than workers.
        self.indices = [rest[n % len(rest)] for n in range(self.rank, self.total_size, self.num_replicas)]
        return iter(self.indices)

    def __len__(self) -> int:
        """Return how many samples this rank has."""
        return self.num_samples
