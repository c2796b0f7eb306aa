"""One job of `python -m benchmarks queue`: trains for real, at a speed that is known.

Each worker sleeps for every sample of its part of a batch. So the time of a step falls with the number of workers, as
it does where each worker has an accelerator of its own, although the workers of this benchmark share a few cores.

    farandole run -np 2 python benchmarks/sharing/training_job.py digits --steps 100 [--elastic]
    farandole run -np 2 python benchmarks/sharing/training_job.py language --steps 100
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import farandole.torch as hvd

TEXT = "a farandole is a chain dance: join hands, and follow the one at the head. " * 200
LENGTH = 16


def digits() -> tuple[TensorDataset, torch.nn.Module]:
    """Return handwritten digits, and a network for them."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).flatten(1) / 16
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    return TensorDataset(images, torch.tensor(data.target)), model


def language() -> tuple[TensorDataset, torch.nn.Module]:
    """Return pieces of a text, the letter that follows each, and a small model of letters."""
    letters = torch.tensor([ord(letter) for letter in TEXT])
    pieces = letters.unfold(0, LENGTH, 1)[:-1]
    model = torch.nn.Sequential(
        torch.nn.Embedding(128, 16), torch.nn.Flatten(), torch.nn.Linear(16 * LENGTH, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, 128),
    )  # fmt: skip
    return TensorDataset(pieces, letters[LENGTH:]), model


def fixed_batches(data: TensorDataset, batch: int, steps: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield this rank's part of each batch."""
    mine = batch // hvd.size()
    for step in range(steps):
        begin = (step * batch + hvd.rank() * mine) % (len(data) - batch)
        yield data[begin : begin + mine]


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=("digits", "language"))
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=48, help="samples of all workers in a step")
    parser.add_argument("--step", type=float, default=0.5, metavar="S", help="seconds of a step of one worker")
    parser.add_argument("--elastic", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    hvd.init()
    data, model = digits() if given.model == "digits" else language()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
    if given.elastic:
        loader = hvd.elastic.ElasticLoader(data, global_batch_size=given.batch)
        batches = hvd.elastic.steps(
            loader, epochs=1 + given.steps * given.batch // len(data), model=model, optimizer=optimizer
        )
    else:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        batches = fixed_batches(data, given.batch, given.steps)
    for step, (inputs, targets) in enumerate(batches):
        until = time.monotonic() + given.step * len(inputs) / given.batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        time.sleep(max(0.0, until - time.monotonic()))
        optimizer.step()
        if given.elastic and batches.step + 1 >= given.steps:
            break
        if step % 20 == 0 and hvd.rank() == 0:
            print(f"step {step}: {hvd.size()} workers, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
