"""Train a small convolutional network on scikit-learn's handwritten digits, on one worker or on many.

    python examples/digits.py                          # one process
    farandole run -np 2 python examples/digits.py      # two workers

The script is an ordinary PyTorch script. What makes it distributed are the lines that end with `# distributed`:
without them it runs, on one process, and does the same. A test deletes them and tries.
"""

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from tqdm import tqdm

import farandole.torch as hvd  # distributed

COMPRESSIONS = {  # distributed
    "none": hvd.Compression.none,  # distributed
    "fp16": hvd.Compression.fp16,  # distributed
    "bf16": hvd.Compression.bf16,  # distributed
    "int8": hvd.Compression.int8,  # distributed
    "topk": hvd.Compression.topk(0.05),  # distributed
    "powersgd": hvd.Compression.powersgd(4),  # distributed
}  # distributed


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="for one worker; n workers use n times it")
    parser.add_argument("--highest-learning-rate", type=float, default=0.15, help="for however many workers")
    parser.add_argument("--warmup-epochs", type=int, default=3, help="epochs until the full learning rate is reached")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None, help="use only so many training images")
    parser.add_argument("--checkpoint", type=Path, default=None, help="file to write after each epoch")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint, if there is one")
    parser.add_argument("--stop-after", type=int, default=None, help="stop after so many epochs, as if interrupted")
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none")  # distributed
    parser.add_argument("--goal", type=float, default=None, help="fail when the test accuracy stays below this")
    return parser.parse_args()


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def load_images() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images [n, 1, 8, 8] and labels [n], then those held out for the test: every fifth."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def save_atomically(checkpoint: dict, path: Path) -> None:
    """A reader finds the old checkpoint or the new one, never half of one, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    with unfinished.open("wb") as file:
        torch.save(checkpoint, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def set_learning_rate(optimizer: torch.optim.Optimizer, full: float, epochs_done: float, arguments) -> None:
    """Rise in a straight line during warm-up, so that a large step does not meet a network that knows nothing yet;
    fall in a straight line to zero after that."""
    rise = epochs_done / arguments.warmup_epochs if arguments.warmup_epochs else 1.0
    fall = (arguments.epochs - epochs_done) / max(arguments.epochs - arguments.warmup_epochs, 1)
    for group in optimizer.param_groups:
        group["lr"] = full * min(rise, fall, 1.0)


def fingerprint(model: nn.Module) -> str:
    """Hash every bit of the parameters."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    arguments = parse_arguments()
    rank, size = 0, 1
    hvd.init()  # distributed
    rank, size = hvd.rank(), hvd.size()  # distributed
    torch.manual_seed(arguments.seed)
    images, labels, test_images, test_labels = load_images()
    images, labels = images[: arguments.limit], labels[: arguments.limit]

    model = build_model()
    # A larger batch bears a larger step, but not without end: beyond some size the training diverges.
    full_learning_rate = min(arguments.learning_rate * size, arguments.highest_learning_rate)
    optimizer = torch.optim.SGD(model.parameters(), lr=full_learning_rate, momentum=0.9, weight_decay=1e-4)
    compression = COMPRESSIONS[arguments.compression]  # distributed
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)  # distributed

    epochs_done = 0
    if arguments.resume and rank == 0 and arguments.checkpoint.exists():
        checkpoint = torch.load(arguments.checkpoint, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        epochs_done = checkpoint["epochs_done"]
    epochs_done = hvd.broadcast_object(epochs_done, root_rank=0, name="epochs_done")  # distributed
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # distributed
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # distributed

    batch_of_all = arguments.batch_size * size
    steps_per_epoch = -(-len(images) // batch_of_all)
    steps_done = epochs_done * steps_per_epoch
    images_seen, seconds, waited = 0, 0.0, 0.0
    progress = tqdm(
        total=arguments.epochs * steps_per_epoch, initial=steps_done, unit="step", disable=rank != 0, mininterval=1
    )

    for epoch in range(epochs_done, min(arguments.epochs, arguments.stop_after or arguments.epochs)):
        # The same order on all workers, and another one each epoch, whether resumed or not.
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(arguments.seed * 1000 + epoch))
        total_loss = torch.zeros(1, dtype=torch.float64)
        model.train()
        started = time.perf_counter()
        waited_before = hvd.stats()["blocked_seconds"]  # distributed
        for batch in order.split(batch_of_all):
            mine = batch[rank::size]
            set_learning_rate(optimizer, full_learning_rate, (steps_done + 1) / steps_per_epoch, arguments)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
            # The optimizer averages over the workers. Dividing by the mean share, not by one's own, makes that the
            # mean over the images even where a last batch gives some workers one image less, or none.
            (loss / (len(batch) / size)).backward()
            optimizer.step()
            total_loss += loss.detach()
            steps_done += 1
            progress.update()
        seconds += time.perf_counter() - started
        waited += hvd.stats()["blocked_seconds"] - waited_before  # distributed
        images_seen += len(images)

        total_loss = hvd.allreduce(total_loss, op=hvd.Sum, name="total_loss")  # distributed
        if rank == 0:
            progress.write(f"epoch {epoch + 1}: loss {total_loss.item() / len(images):.8f}", file=sys.stdout)
            if arguments.checkpoint:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epochs_done": epoch + 1,
                }
                save_atomically(checkpoint, arguments.checkpoint)
    progress.close()

    model.eval()
    with torch.no_grad():
        right = (model(test_images[rank::size]).argmax(1) == test_labels[rank::size]).sum()
    right = hvd.allreduce(right, op=hvd.Sum, name="right")  # distributed
    accuracy = right.item() / len(test_labels)
    fingerprints = [fingerprint(model)]
    fingerprints = hvd.allgather_object(fingerprints[0], name="fingerprints")  # distributed

    if rank == 0:
        print(f"test accuracy: {accuracy:.4f} ({right.item()} of {len(test_labels)} images)")
        if len(set(fingerprints)) == 1:
            print(f"parameters: bit-identical on {size} worker(s), sha256 {fingerprints[0][:16]}")
        if seconds:
            print(f"speed: {images_seen / seconds:.0f} images/s on {size} worker(s)")
            print(f"waiting for communication: {waited / seconds:.1%} of the step time")
    if len(set(fingerprints)) != 1:
        sys.exit(f"error: the workers hold different parameters, by rank: {[each[:16] for each in fingerprints]}")
    if arguments.goal is not None and accuracy < arguments.goal:
        sys.exit(f"error: the test accuracy {accuracy:.4f} is below the goal {arguments.goal}")


if __name__ == "__main__":
    main()
