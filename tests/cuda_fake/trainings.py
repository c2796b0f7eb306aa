"""Trainings on `cuda` that PyTorch's DDP and farandole carry out alike. Arguments: FOLDER.

Each rank trains every model in every way, first with DDP over ProcessGroupNCCL, then with `DistributedOptimizer`. It
prints as JSON for each: the largest difference of their parameters, how far these went, and how often farandole
launched something with NCCL.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["FARANDOLE_LOCAL_RANK"]

import torch
import torch.distributed as dist
from cuda_on_fake_gpu import OnHost
from torch import nn

import farandole.torch as hvd

STEPS = 20
BATCH = 4
WORDS = 11


class Transformer(nn.Module):
    """One layer of attention and one of two linear maps, on an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, WORDS)
        self.norm = nn.LayerNorm(8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the words' scores, (batch, length, WORDS)."""
        x = self.embedding(words)
        attention = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2) / 8**0.5, dim=2)
        x = self.norm(x + attention @ self.value(x))
        return self.outer(torch.relu(self.inner(x)))


class Residual(nn.Module):
    """Two blocks of convolutions and batch norms, each with a way around it, as in a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
                *(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
            )
            for _ in range(2)
        )
        self.last = nn.Linear(4, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the words' scores, (batch, length, WORDS)."""
        column = self.embedding(words).transpose(1, 2)
        x = column.unsqueeze(2) + column.unsqueeze(3)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.last(x.mean(dim=2).transpose(1, 2))


class Embeddings(nn.Module):
    """Two tables, of which a batch uses few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.other = nn.Embedding(WORDS, 6), nn.Embedding(WORDS, 6)
        self.last = nn.Linear(12, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the words' scores, (batch, length, WORDS)."""
        return self.last(torch.cat([self.embedding(words), self.other(words.flip(1))], dim=2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": Transformer,
    "residual": Residual,
    "embeddings": Embeddings,
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"passes": 2},
    "clipped": {"clip": 0.05},
    "scaled": {"scaled": True},
    "autocast": {"autocast": torch.bfloat16},
    "mixed precision": {"autocast": torch.float16, "scaled": True, "clip": 0.05},
}


def batches(rank: int, passes: int) -> Iterator[list[torch.Tensor]]:
    """Yield this rank's batches of each step."""
    source = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        yield [torch.randint(0, WORDS, (BATCH, 5), generator=source) for _ in range(passes)]


def train(model_name: str, way: dict[str, Any], by_farandole: bool) -> torch.Tensor:
    """Return the parameters after a training, in one dimension, on the CPU."""
    torch.manual_seed(0)
    model = MODELS[model_name]().cuda()
    passes = way.get("passes", 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, enabled=way.get("scaled", False))
    network = model
    if by_farandole:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=passes)
    else:
        network = nn.parallel.DistributedDataParallel(model, device_ids=[0], gradient_as_bucket_view=True)
    for words in batches(hvd.rank(), passes):
        optimizer.zero_grad()
        for number, each in enumerate(words):
            waits = number + 1 < passes and not by_farandole
            with network.no_sync() if waits else contextlib.nullcontext():
                given = each.cuda()
                with torch.autocast("cuda", way.get("autocast"), enabled="autocast" in way):
                    scores = network(given).float()
                target = nn.functional.one_hot(given.roll(1, 1), WORDS).to(scores.dtype)
                loss = (scores - target).square().mean() / passes
                scaler.scale(loss).backward()
        if by_farandole and (way.get("clip") or way.get("scaled")):
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        if way.get("clip"):
            nn.utils.clip_grad_norm_(model.parameters(), way["clip"])
        with (
            optimizer.skip_synchronize()
            if by_farandole and (way.get("clip") or way.get("scaled"))
            else (contextlib.nullcontext())
        ):
            scaler.step(optimizer)
        scaler.update()
    return parameters_of(model)


def parameters_of(model: nn.Module) -> torch.Tensor:
    """Return the parameters in one dimension, on the CPU."""
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


def launches() -> int:
    """Return how often this process has launched something with NCCL."""
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.fake_nccl_count.restype = ctypes.c_uint64
    return int(nccl.fake_nccl_count(b"groups"))


def main() -> None:
    """Train all, and print what differs."""
    hvd.init()
    torch.backends.cudnn.enabled = False  # cuDNN has no fake.
    rendezvous = f"file://{Path(sys.argv[1]) / 'rendezvous'}"
    found = {}
    with OnHost():
        dist.init_process_group("nccl", init_method=rendezvous, rank=hvd.rank(), world_size=hvd.size())
        for model in MODELS:
            for name, way in WAYS.items():
                theirs = train(model, way, by_farandole=False)
                before = launches()
                ours = train(model, way, by_farandole=True)
                torch.manual_seed(0)
                found[f"{model} {name}"] = {
                    "difference": float((ours - theirs).abs().max()),
                    "way": float((ours - parameters_of(MODELS[model]())).abs().max()),
                    "launches": launches() - before,
                }
    print(json.dumps(found), flush=True)
    hvd.shutdown()
    os._exit(0)  # ProcessGroupNCCL's threads still watch.


main()
