"""Jobs whose workers, and what starts them, are killed by tests; and the trainings that they run."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ray.conftest import SECONDS, until

import farandole.ray

STEPS = 40
SAMPLES = 61


def train(folder: str, size: int) -> tuple[list[float], list[int]]:
    """Train until the test says finish and the world has this size; return the parameters and the size."""
    import torch

    import farandole
    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            Path(folder, f"pid.{os.getpid()}").touch()
            farandole.report((hvd.rank(), hvd.size(), state.step))
            optimizer.zero_grad()
            model(torch.full((2, 1), float(state.step % 7))).square().mean().backward()
            optimizer.step()
            state.step += 1
            done = hvd.allreduce(torch.tensor([float(Path(folder, "finish").exists())]), op=hvd.Min, name="done")
            state.commit()
            if done[0] and state.step >= STEPS and hvd.size() == size:
                return

    loop(state)
    return [float(each) for each in model.parameters()], [hvd.size()]


def dataset() -> Any:
    """Return a dataset of Ray with SAMPLES rows."""
    import ray.data

    return ray.data.from_items([{"number": float(number)} for number in range(SAMPLES)], override_num_blocks=5)


def train_and_record(
    folder: str, dataset: Any = None, pause: float = 0.05, before_step: Callable[[int], None] = lambda step: None
) -> list[float]:
    """Train in an elastic loop until the test says finish; record the samples of each step, and return the parameters.

    Args:
        folder: a process writes `book.PID` there, a line for each step, and `pid.PID` once it holds the state.
        dataset: whose samples are dicts with "number"; None: SAMPLES of them.
        pause: seconds that each step takes longer.
        before_step: called with the number of each step.
    """
    import torch

    import farandole
    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3), model.named_parameters())
    samples = dataset if dataset is not None else [{"number": float(number)} for number in range(SAMPLES)]
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=7, seed=5)
    book = open(Path(folder) / f"book.{os.getpid()}", "a", buffering=1)
    commit = loader.commit

    def record(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used = [
            loader.ledger.index(position) for share in shares for begin, end in share for position in range(begin, end)
        ]
        epoch = loader.ledger.epoch
        commit(batch, lost)
        if not loop._worlds.shadows.include_this_rank:
            book.write(json.dumps([loop.step, epoch, used, [float(each) for each in model.parameters()]]) + "\n")
            Path(folder, f"pid.{os.getpid()}").touch()

    loader.commit = record
    loop = hvd.elastic.steps(loader, epochs=10**9, model=model, optimizer=optimizer)
    for batch in loop:
        farandole.report((hvd.rank(), hvd.size(), loop.step))
        before_step(loop.step)
        optimizer.zero_grad()
        model(torch.as_tensor(batch["number"], dtype=torch.float32)[:, None] / SAMPLES).square().mean().backward()
        optimizer.step()
        if Path(folder, "finish").exists():
            loop.stop()
        time.sleep(pause)
    book.write("end\n")
    return [float(each) for each in model.parameters()]


def what_is_wrong(folder: Path) -> list[str]:
    """Return what is wrong in the books of `train_and_record`; nothing if each sample was used once in each epoch."""
    wrong: list[str] = []
    steps: dict[int, Any] = {}
    for file in folder.glob("book.*"):
        *lines, last = file.read_text().split("\n") or [""]
        # The last step of a process that was killed may count for it alone, and half a line may be written.
        lines = lines[:-1] if not last else lines
        for step, *seen in map(json.loads, [line for line in lines if line != "end"]):
            if steps.setdefault(step, seen) != seen:
                wrong.append(f"{file.name} sees step {step} otherwise than others: {seen} and {steps[step]}")
    if sorted(steps) != list(range(len(steps))):
        wrong.append(f"steps are missing: {sorted(steps)}")
    epochs: dict[int, Counter[int]] = {}
    for epoch, used, _ in steps.values():
        epochs.setdefault(epoch, Counter()).update(used)
    for epoch, used in epochs.items():
        twice = [number for number, times in used.items() if times > 1]
        missing = [number for number in range(SAMPLES) if number not in used]
        if twice or (missing and epoch != max(epochs)):
            wrong.append(f"epoch {epoch}: used more than once {twice}, not at all {missing}")
    return wrong if steps else ["no step was taken"]


class Job:
    """`farandole.ray.run` in a thread, which a failing test does not wait for.

    Args:
        folder: of the training.
        options: of `farandole.ray.run`.
        fn: the training; its arguments follow.
    """

    def __init__(self, folder: Path, options: dict[str, Any], fn: Callable[..., Any], *args: Any) -> None:
        self.folder = folder
        self.values: list[tuple[int, int, int]] = []
        self.results: Any = None
        self.error: BaseException | None = None
        self._is_given_up = False

        def run() -> None:
            try:
                self.results = farandole.ray.run(fn, [str(folder), *args], callbacks=[self._take], **options)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _take(self, value: tuple[int, int, int]) -> None:
        if self._is_given_up:
            raise RuntimeError("the test is over")  # It ends the job.
        self.values.append(value)

    def give_up(self) -> None:
        """End the job, if it still runs, when it reports its next value."""
        self._is_given_up = True

    def reaches(self, *sizes: int) -> None:
        """Wait until a step is taken by one of these numbers of workers from now on."""
        seen = len(self.values)
        until(lambda: self.error or any(each[1] in sizes for each in self.values[seen:]))
        assert self.error is None, self.error

    def workers(self) -> list[int]:
        """Return the process ids of living workers that have taken a step."""
        return living(self.folder)

    def finish(self) -> Any:
        (self.folder / "finish").touch()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.results


def living(folder: Path) -> list[int]:
    """Return the process ids of the living processes that have written `pid.PID` into a folder."""
    pids = [int(each.name.partition(".")[2]) for each in folder.glob("pid.*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def dialer_of(pid: int) -> int:
    return parent_of(parent_of(pid))


def actor_of(pid: int) -> int:
    return parent_of(dialer_of(pid))
