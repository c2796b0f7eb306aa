"""The training of the soak, as its workers run it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fake_gpu_device import DEVICE, FakeGpu, nccl_count, plan_nccl_fault

SAMPLES = 203


def train(directory: str, pause: float, device: str) -> Any:
    """Train until the test says stop, and write down what each step has used. Run by a worker.

    A file `order-<worker>` in the directory is what the test wants of it at its next step: to raise an exception, or a
    fault of its NCCL.
    """
    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current

    def digest_of(tensors: Any) -> str:
        """Return a digest of the values of tensors."""
        return hashlib.sha256(b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()

    if device == DEVICE:
        FakeGpu.of_environment().load_for_farandole()
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.001), model.named_parameters())
    features = torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(0))
    samples = [(features[index], features[index].sum(), index) for index in range(SAMPLES)]
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=23, seed=5)
    worker = current().settings.rank
    book = open(Path(directory) / f"worker-{worker}", "a", buffering=1)
    commit = loader.commit

    def write_down(batch: Any, lost: Any = ()) -> None:
        """Note which samples of which epoch a step has used, as this worker sees it."""
        used = [
            loader.ledger.index(position)
            for rank, share in enumerate(batch.shares)
            if rank not in lost
            for begin, end in share
            for position in range(begin, end)
        ]
        epoch = loader.ledger.epoch
        commit(batch, lost)
        if not loop._worlds.shadows.include_this_rank:
            book.write(json.dumps([loop.step, epoch, used, digest_of(model.parameters())]) + "\n")

    def obey() -> None:
        """Do what the test wants in this step."""
        order = Path(directory) / f"order-{worker}"
        try:
            wanted = order.read_text()
        except FileNotFoundError:
            return
        order.unlink()
        if wanted != "exception":
            plan_nccl_fault(wanted)
            return
        # As in a script that nobody catches it in.
        current().fail(RuntimeError("the test wants it"))
        os._exit(1)

    def tell_faults() -> None:
        """Note how many faults this process's NCCL has had."""
        if device == DEVICE:
            path = Path(directory) / f"faults-{worker}"
            path.with_suffix(".new").write_text(str(nccl_count("faults")))
            path.with_suffix(".new").rename(path)

    def threads() -> Iterator[str]:
        """Yield the names of this process's threads; one may end meanwhile."""
        of_python = {str(thread.native_id): thread.name for thread in threading.enumerate()}
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                yield of_python.get(thread.name) or (thread / "comm").read_text().strip()

    def holdings() -> Any:
        """Return what this process holds of its system; None if it has lost the roster, and so a connection."""
        roster = current().roster
        connection = roster._channel
        status = Path("/proc/self/status").read_text()
        found = (
            hvd.size(),
            sorted(threads()),
            len(os.listdir("/proc/self/fd")),
            len(Path("/proc/self/maps").read_text().splitlines()),
            int(status.split("VmRSS:")[1].split()[0]),
        )
        return found if roster._channel is connection and not roster._away else None

    loader.commit = write_down
    held: list[Any] = []
    holding: Any = None
    since = generation = 0
    loop = hvd.elastic.steps(loader, epochs=10**9, model=model, optimizer=optimizer)
    for x, y, _ in loop:
        obey()
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
        loss.backward()
        if loop.step % 3 == 0:
            hvd.allreduce(loss.detach(), name="loss")
        optimizer.step()
        tell_faults()
        if current().world.generation != generation:
            generation, since = current().world.generation, loop.step
        if loop.step == since + 2:
            holding = holdings()
        elif loop.step == since + 3 and holding is not None:
            # Only now is it known that the world was whole: of one that breaks, some threads have ended already.
            held.append(holding)
        if (Path(directory) / "stop").exists():
            loop.stop()
        time.sleep(pause)
    states = optimizer.state_dict()["state"].values()
    moments = [state["exp_avg"] for state in states if "exp_avg" in state]
    ended = hvd.size(), loop.step, digest_of([*model.parameters(), *moments]), held
    hvd.shutdown()
    return ended
