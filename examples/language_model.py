"""Train a small GPT, byte by byte, on text that every machine has: the source of Python's own standard library.

    python examples/language_model.py                          # one process
    farandole run -np 2 python examples/language_model.py      # two workers

It also shows how to clip gradients: between `synchronize()` and `step()`, when they are reduced but not yet used.
"""

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import farandole.torch as hvd

BYTES = 256  # the vocabulary
COMPRESSIONS = {
    "none": hvd.Compression.none,
    "fp16": hvd.Compression.fp16,
    "bf16": hvd.Compression.bf16,
    "int8": hvd.Compression.int8,
    "topk": hvd.Compression.topk(0.05),
    "powersgd": hvd.Compression.powersgd(4),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on the source of Python's standard library.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="windows per worker and step")
    parser.add_argument("--context", type=int, default=128, help="bytes in a window")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--limit", type=int, default=8_000_000, help="bytes of text to use")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none", help="how gradients travel")
    parser.add_argument("--sample", type=int, default=200, help="bytes to write with the trained model")
    return parser.parse_args()


def load_text(limit: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bytes to train on, and the last tenth, held out."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    data = torch.frombuffer(text[:limit], dtype=torch.uint8)
    border = len(data) * 9 // 10
    return data[:border], data[border:]


class Block(nn.Module):
    """Attention to what came before, then a feed-forward layer; each adds to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        projected = self.query_key_value(self.attention_norm(x))
        query, key, value = projected.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


class GPT(nn.Module):
    """Maps bytes [batch, length] to the logits of the byte that follows each, [batch, length, 256]."""

    def __init__(self, context: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(BYTES, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.embedding(text) + self.position(positions))))

    @torch.no_grad()
    def write(self, text: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
        for _ in range(count):
            logits = self(text[-self.context :].unsqueeze(0))[0, -1]
            text = torch.cat([text, torch.multinomial(logits.softmax(0), 1, generator=generator)])
        return text


def windows(data: torch.Tensor, starts: torch.Tensor, context: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the windows that begin at `starts`, and the same one byte later: what is to be predicted."""
    text = data[starts.unsqueeze(1) + torch.arange(context + 1)].long()
    return text[:, :-1], text[:, 1:]


def loss_of(model: GPT, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def learning_rate_at(step: int, arguments: argparse.Namespace) -> float:
    """Rise in a straight line, then fall along half a cosine to a tenth."""
    if step < arguments.warmup_steps:
        return arguments.learning_rate * (step + 1) / arguments.warmup_steps
    done = (step - arguments.warmup_steps) / max(arguments.steps - arguments.warmup_steps, 1)
    return arguments.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    torch.manual_seed(arguments.seed)
    training, held_out = load_text(arguments.limit)
    model = GPT(arguments.context, arguments.width, arguments.depth, arguments.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=COMPRESSIONS[arguments.compression]
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    # Every worker draws from the whole text, each with a seed of its own.
    generator = torch.Generator().manual_seed(arguments.seed * 1000 + rank)
    last_start = len(training) - arguments.context - 1
    progress = tqdm(total=arguments.steps, unit="step", disable=rank != 0, mininterval=1)
    started = time.perf_counter()
    for step in range(arguments.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, arguments)
        starts = torch.randint(last_start, (arguments.batch_size,), generator=generator)
        optimizer.zero_grad()
        loss = loss_of(model, *windows(training, starts, arguments.context))
        loss.backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        progress.update()
        progress.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    seconds = time.perf_counter() - started
    progress.close()

    # The held-out text is shared out: worker r takes every size-th window, beginning with the r-th.
    model.eval()
    starts = torch.arange(0, len(held_out) - arguments.context - 1, arguments.context)[: 64 * size][rank::size]
    with torch.no_grad():
        nats = loss_of(model, *windows(held_out, starts, arguments.context))
    nats = hvd.allreduce(nats, name="held_out_loss")
    if rank == 0:
        trained = arguments.steps * arguments.batch_size * arguments.context * size
        print(f"held-out text: {nats.item() / math.log(2):.3f} bits per byte")
        print(f"speed: {trained / seconds:.0f} bytes/s on {size} worker(s)")
        prompt = torch.tensor(list(b"def "))
        written = model.write(prompt, arguments.sample, torch.Generator().manual_seed(arguments.seed))
        sys.stdout.write(bytes(written.tolist()).decode(errors="replace") + "\n")


if __name__ == "__main__":
    main()
