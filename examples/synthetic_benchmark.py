"""Measure how many images per second some models train on, with made-up images: no data, no download.

    farandole run -np 2 python examples/synthetic_benchmark.py --model residual

Run it with one worker and with several: what is missing from n times the speed is the price of distribution.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import farandole.torch as hvd

CLASSES = 100


class Residual(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def residual() -> nn.Module:
    """Many small tensors, and much to compute for each."""
    stages = [Residual(16, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2), Residual(128, 256, 2)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES)
    )


def wide() -> nn.Module:
    """Few large tensors, 17 million parameters, and little to compute for each: hard on communication."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 32 * 32, 4096),
        nn.ReLU(),
        nn.Linear(4096, 1024),
        nn.ReLU(),
        nn.Linear(1024, CLASSES),
    )


MODELS = {"residual": residual, "wide": wide}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure training speed on made-up images of 32 x 32.")
    parser.add_argument("--model", choices=sorted(MODELS), default="residual")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10)
    parser.add_argument("--num-iters", type=int, default=10)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as 16-bit floats")
    parser.add_argument("--no-cuda", action="store_true", help="do not use a GPU")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    use_gpu = torch.cuda.is_available() and not arguments.no_cuda
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if use_gpu else torch.device("cpu")
    torch.manual_seed(1)
    model = MODELS[arguments.model]().to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(arguments.batch_size, 3, 32, 32, device=device)
    labels = torch.randint(CLASSES, (arguments.batch_size,), device=device)

    def train(batches: int) -> None:
        for _ in range(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if use_gpu:
            torch.cuda.synchronize()

    def say(text: str) -> None:
        if hvd.rank() == 0:
            print(text, flush=True)

    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(f"Model: {arguments.model}, {parameters:,} parameters, {arguments.batch_size} images per worker and step")
    say(f"Number of workers: {hvd.size()} on {device.type}")
    train(arguments.num_warmup_batches)
    speeds = []
    blocked = hvd.stats()["blocked_seconds"]
    began = time.perf_counter()
    for iteration in range(arguments.num_iters):
        started = time.perf_counter()
        train(arguments.num_batches_per_iter)
        seconds = time.perf_counter() - started
        speeds.append(arguments.batch_size * arguments.num_batches_per_iter / seconds)
        say(f"Iter #{iteration}: {speeds[-1]:.1f} img/sec per worker")
    waited = (hvd.stats()["blocked_seconds"] - blocked) / (time.perf_counter() - began)

    mean, spread = statistics.mean(speeds), 1.96 * statistics.pstdev(speeds)
    say(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} worker(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    say(f"Waiting for communication: {waited:.1%} of the step time")


if __name__ == "__main__":
    main()
