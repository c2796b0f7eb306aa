"""A training step of a transformer with 25 million parameters, with different ways to sum its gradients."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

ALONE = "one process alone"
COMPUTATION = "no communication"
OURS = "DistributedOptimizer"
OUR_DDP = "DDP on farandole"
GLOO_DDP = "DDP on gloo"
WAYS = (ALONE, COMPUTATION, OURS, OUR_DDP, GLOO_DDP)

VOCABULARY, WIDTH, LAYERS, HEADS = 12000, 512, 6, 8


def make_step(way: str, tokens: int, compression: str = "none") -> Callable[[], None]:
    """Return a call that makes one step: forward, backward, optimizer.

    Args:
        way: one of `WAYS`. With `ALONE`, only rank 0 computes, and the others return at once.
        tokens: the number of tokens in one worker's batch.
        compression: the compression of `OURS`, by the name that the examples use.
    """
    import torch

    import farandole.torch as hvd

    model = _make_model()
    if way in (OUR_DDP, GLOO_DDP):
        group = _make_group("gloo" if way == GLOO_DDP else "farandole")
        model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if way == OURS:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), _make_compression(compression))
    words = torch.randint(VOCABULARY, (1, tokens + 1))

    def step() -> None:
        optimizer.zero_grad()
        scores = model(words[:, :-1])
        torch.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()

    return step if way != ALONE or hvd.rank() == 0 else lambda: None


def _make_compression(name: str) -> Any:
    """Return the compression that an example uses by this name, with the example's parameter."""
    from farandole.torch import Compression

    with_parameter = {"topk": lambda: Compression.topk(0.05), "powersgd": lambda: Compression.powersgd(4)}
    return with_parameter[name]() if name in with_parameter else getattr(Compression, name)


def _make_model() -> Any:
    """Return the transformer: 18.9 million parameters in its layers, 6.1 million in its embedding."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.body = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            hidden = self.body(self.embedding(words))
            return torch.nn.functional.linear(hidden, self.embedding.weight)

    torch.manual_seed(0)
    return Model()


def _make_group(backend: str) -> Any:
    """Return a process group of all workers; the first one makes torch.distributed's world."""
    import torch.distributed as dist

    import farandole.torch as hvd
    import farandole.torch.distributed  # noqa: F401  (knows the backend's name)

    if not dist.is_initialized():
        meeting = f"file://{os.environ['BENCHMARK_FOLDER']}/store"
        dist.init_process_group("gloo", init_method=meeting, rank=hvd.rank(), world_size=hvd.size())
    return dist.new_group(backend=backend)
