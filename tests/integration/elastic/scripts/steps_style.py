"""A training by `steps` that writes every step into a book of its own, and dies where it is told to.

A fault is `PHASE:WORKER[:STEP[:stop]]`: that worker is killed there, or stopped, at that step or, if it does not come
by then, later. Of what is called, there are three phases: `before-count`, `in-count` and `after-count`, for one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Of a call that a worker is to die in the middle of.
INSIDE_SECONDS = 0.005
WORKER = int(os.environ["FARANDOLE_WORKER"])


class Faults:
    """Where this worker dies."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self.step = 0
        self._at: dict[str, int] = {}
        for fault in wanted:
            phase, worker, *more = fault.split(":")
            if int(worker) == WORKER:
                self._at[phase] = int(more[0]) if more else 0
                self._signal = signal.SIGSTOP if more[1:] else signal.SIGKILL

    def here(self, phase: str) -> None:
        """Die, if it is here."""
        if self._due(phase):
            os.kill(os.getpid(), self._signal)

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Let there be three phases of a function."""
        call = getattr(owner, name)

        def guarded(*arguments: Any, **options: Any) -> Any:
            self.here(f"before-{phase}")
            killer = self._begin_to_kill() if self._due(f"in-{phase}") else None
            try:
                result = call(*arguments, **options)
            finally:
                if killer is not None:
                    # The call may be over before. What would come next is not to be done, such as giving away the rest
                    # of the state.
                    killer.join()
            self.here(f"after-{phase}")
            return result

        setattr(owner, name, guarded)

    def _begin_to_kill(self) -> threading.Thread:
        killer = threading.Timer(INSIDE_SECONDS, os.kill, (os.getpid(), self._signal))
        killer.start()
        return killer

    def _due(self, phase: str) -> bool:
        return self.step >= self._at.get(phase, self.step + 1)


class Book:
    """What one worker has seen, a line for each step, and one for its end."""

    def __init__(self, directory: Path) -> None:
        self._file = open(directory / f"worker-{WORKER}.book", "a", buffering=1)
        self.write(pid=os.getpid())

    def write(self, **facts: Any) -> None:
        """Add a line."""
        self._file.write(json.dumps({"worker": WORKER, **facts}) + "\n")


def main() -> None:
    """Train until there is a file `stop` in the directory of the books."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, default=Path())
    parser.add_argument("--samples", type=int, default=101)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--ballast", type=float, action="append", default=[], help="one tensor more to send, in MB")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds of each step")
    parser.add_argument("--checkpoints", type=Path, help="where to write one after every other step")
    parser.add_argument("--form-seconds", type=float, help="how long the forming of a world may take")
    parser.add_argument("--fault", action="append", default=[])
    given = parser.parse_args()
    faults = Faults(given.fault)
    faults.here("import")
    train(given, faults, Book(given.books))


def train(given: argparse.Namespace, faults: Faults, book: Book) -> None:
    """Train, as users do, and write it down."""
    import torch

    import farandole.torch as hvd
    from farandole.base.wire.roster_client import RosterClient
    from farandole.torch.elastic.checkpoint import Checkpoint
    from farandole.worker.core import worlds
    from farandole.worker.core.engine import Engine
    from farandole.worker.elastic import pieces
    from farandole.worker.elastic.step_retry import StepRetry
    from farandole.worker.gradients.reducer import Reducer
    from farandole.worker.gradients.step_ballot import StepBallot

    worlds.FORM_SECONDS = given.form_seconds or worlds.FORM_SECONDS
    faults.around(RosterClient, "join", "join")
    faults.around(Engine, "form", "form")
    faults.around(StepBallot, "cast", "cast")
    faults.around(Reducer, "_run_out", "reduce")
    faults.around(StepRetry, "count", "count")
    faults.around(pieces, "_move", "transfer")
    hvd.init()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    for number, megabytes in enumerate(given.ballast):
        model.register_buffer(f"ballast{number}", _ballast(megabytes))
    model[0].weight.register_hook(lambda gradient: faults.here("backward"))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.001), model.named_parameters())
    features = torch.randn(given.samples, 12, generator=torch.Generator().manual_seed(0))
    samples = [(features[index], features[index].sum()) for index in range(given.samples)]
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=given.batch, seed=5)
    checkpoint = None if given.checkpoints is None else Checkpoint(given.checkpoints, every_steps=2, patience=5.0)
    loop = hvd.elastic.steps(loader, epochs=10**9, checkpoint=checkpoint, model=model, optimizer=optimizer)
    commit = loader.commit

    def write_down(batch: Any, lost: Sequence[int] = ()) -> None:
        """Note which samples of which epoch a step has used, as this worker sees it."""
        used = [
            loader.ledger.index(position)
            for rank, share in enumerate(batch.shares)
            if rank not in lost
            for begin, end in share
            for position in range(begin, end)
        ]
        epoch = loader.ledger.epoch
        faults.here("before-commit")
        commit(batch, lost)
        book.write(step=loop.step, epoch=epoch, used=used, size=hvd.size(), rank=hvd.rank(), at=time.time())

    loader.commit = write_down  # type: ignore[method-assign]
    for x, y in loop:
        faults.step = loop.step
        faults.here("step")
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
        loss.backward()
        faults.here("allreduce")
        hvd.allreduce(loss.detach(), name="loss")
        optimizer.step()
        if (given.books / "stop").exists():
            loop.stop()
        time.sleep(given.pause)
    book.write(end=loop.step, digest=_digest(model, optimizer), size=hvd.size())


def _ballast(megabytes: float) -> Any:
    """Return an odd number of bytes that each worker begins with in a way of its own: only sent, they are the same."""
    import torch

    size = int(megabytes * (1 << 20)) | 1
    return torch.arange(WORKER, WORKER + size // 8 + 1).view(torch.uint8)[:size].clone()


def _digest(model: Any, optimizer: Any) -> str:
    moments = [state["exp_avg"] for state in optimizer.state_dict()["state"].values() if "exp_avg" in state]
    digest = hashlib.sha256()
    for each in [*model.state_dict().values(), *moments]:
        digest.update(memoryview(each.detach().numpy()).cast("B"))
    return digest.hexdigest()


if __name__ == "__main__":
    main()
