"""A training that lives through random events, and the oracle that says whether all went right.

Run by itself: `python -m tests.integration.elastic.soak --events 1000 --seed 7`. With `--gpu`, all workers train on one
fake GPU, and NCCL has faults, too. With `--hosts 4`, the workers behave as on that many hosts, which agree over a tree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).parent))

from elastic_worlds import ElasticJob
from fake_gpu_device import DEVICE, FakeGpu, build
from soak_training import SAMPLES, train
from worlds import Nursery, WorkerFailed, WorkerGone

from farandole.control.roster.elastic import Limits

FEWEST, MOST = 4, 8
END_SECONDS = 60.0
# For a worker to come to a fault: it has one only where its communicator is formed, or forms.
FAULT_SECONDS = 5.0
# For a worker whose NCCL does not abort: it ends by itself after 10 s, or is killed.
ABORT_SECONDS = 15.0


class Holdings(NamedTuple):
    """What a worker holds of its system, in one of its worlds."""

    size: int
    """Of the world."""
    threads: list[str]
    """Their names."""
    descriptors: int
    mappings: int
    resident: int
    """In KiB."""


class Ended(NamedTuple):
    """How a worker came to the end of the training."""

    size: int
    step: int
    digest: str
    holdings: list[Holdings]
    """In each of its worlds in which it had its connection to the roster."""


# What the system and its allocators do by themselves, in mappings, and in KiB.
FREE_MAPPINGS = 40
FREE_RESIDENT = 24 << 10
# In the first worlds, much is done for the first time.
FIRST_WORLDS = 3


class Soak:
    """One training, what is done to it, and what comes of it.

    Args:
        nursery: forks the workers.
        seed: of the events.
        pause: seconds that each step takes longer.
        say: is told of each event.
        gpu: the fake GPU that all workers train on; None: they train on the CPU.
        hosts: the number of hosts that the workers think they are on. Several agree over a tree, in which each host has
            at most one other host below it, so that it is as deep as there are hosts.
    """

    def __init__(
        self,
        nursery: Nursery,
        seed: int,
        *,
        pause: float = 0.0,
        say: Any = lambda text: None,
        gpu: FakeGpu | None = None,
        hosts: int = 1,
    ) -> None:
        self._random = random.Random(seed)
        self._say = say
        self._pause = pause
        self._directory = tempfile.TemporaryDirectory()
        self._device = "cpu" if gpu is None else DEVICE
        variables = {"FARANDOLE_GRACE": "20"}
        if gpu is not None:
            variables |= {**gpu.environment(), "FAKE_GPU_DELAY_US": "300", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
            # Small states, too, come while the others train.
            variables |= {"FARANDOLE_ELASTIC_STATE_AT_ONCE": "0"} if seed % 2 else {}
        variables |= {"FARANDOLE_AGREEMENT_FANOUT": "1"} if hosts > 1 else {}
        self.job = ElasticJob(
            nursery,
            Limits(1, MOST, timeout=60.0),
            variables,
            lambda worker: {"FARANDOLE_HOST_KEY": f"host {worker % hosts}"} if hosts > 1 else {},
        )
        self.living: list[int] = []
        self.counts: Counter[str] = Counter()

    def run(self, events: int) -> list[Ended]:
        """Let events happen, end the training, and return how those who were left have ended."""
        self._add(FEWEST)
        self._wait_for_world()
        for number in range(events):
            time.sleep(self._random.choice((0.0, 0.01, 0.05, 0.1, 0.3)))
            name = self._one_event()
            self.counts[name] += 1
            self._say(f"{number + 1} of {events}: {name}; {len(self.living)} live, generation {self._generation}")
            if self.job.ended:
                raise AssertionError(self.job.ended)
        return self._end()

    def grow_and_shrink(self, times: int) -> list[Ended]:
        """Let the first worker live through many worlds, with another one and alone; return how it has ended."""
        self._add(1)
        self._wait_for_world()
        for _ in range(times):
            self._add(1)
            self._wait_for_world()
            self._wait_for_holdings()
            self.job.kill(self.living.pop())
            self._wait_for_world()
            self._wait_for_holdings()
        return self._end()

    def _end(self) -> list[Ended]:
        self._wait_for_world()
        (Path(self._directory.name) / "stop").touch()
        return [
            Ended(size, step, digest, [Holdings(*each) for each in held])
            for size, step, digest, held in self.job.collect(self.living, END_SECONDS)
        ]

    def close(self) -> None:
        """End what is left."""
        self.job.close()
        self._directory.cleanup()

    # --- events ------------------------------------------------------------------------------------------------

    @property
    def _generation(self) -> int:
        return self.job.changes[-1].generation if self.job.changes else 0

    def _one_event(self) -> str:
        if len(self.living) <= FEWEST:
            self._wait_for_world()
            return self._add(self._random.randint(1, MOST - len(self.living)))
        choices: list[Callable[[], str]] = [self._kill, self._kill, self._kill_several, self._stop, self._leave]
        choices += [self._drain, self._raise, self._replace_roster]
        if self._device == DEVICE:
            choices += [self._die_in_nccl, self._break_gpu, self._nccl_error, self._hang_in_init, self._hang_in_abort]
        if len(self.living) < MOST:
            choices += [self._add_one, self._add_one, self._add_and_kill]
        return self._random.choice(choices)()

    def _add(self, count: int) -> str:
        new = self.job.add(count)
        self.job.start(train, self._directory.name, self._pause, self._device, workers=new)
        self.living += new
        return f"{count} more"

    def _somebody(self) -> int:
        """Choose a worker to which something will happen. One that holds the state stays unharmed."""
        spared = self._random.choice(self._holders())
        chosen = self._random.choice([worker for worker in self.living if worker != spared])
        self.living.remove(chosen)
        return chosen

    def _holders(self) -> list[int]:
        """Return the workers that live and have the state: to be in a world is not enough for that."""
        return [worker for worker in self.living if self._book(worker).exists() and self._book(worker).stat().st_size]

    def _book(self, worker: int) -> Path:
        """Return the file in which a worker writes down its steps, a line each."""
        return Path(self._directory.name) / f"worker-{worker}"

    def _add_one(self) -> str:
        return self._add(1)

    def _add_and_kill(self) -> str:
        self._add(1)
        time.sleep(self._random.uniform(0, 0.2))
        worker = self.living.pop()
        self.job.kill(worker)
        return "a newcomer killed"

    def _kill(self) -> str:
        worker = self._somebody()
        self.job.kill(worker)
        return "killed"

    def _kill_several(self) -> str:
        spared = self._random.choice(self._holders())
        others = [worker for worker in self.living if worker != spared]
        for worker in self._random.sample(others, min(len(others), self._random.randint(2, 3))):
            self.living.remove(worker)
            self.job.kill(worker)
        return "several killed"

    def _stop(self) -> str:
        worker = self._somebody()
        self.job.kill(worker, signal.SIGSTOP)
        self.job.tell(self.job.service.suspect, (worker,), "is stopped")
        time.sleep(self._random.uniform(0, 1.5))
        self.job.kill(worker, signal.SIGCONT)
        self.job.kill(worker)
        return "stopped, and continued"

    def _leave(self) -> str:
        worker = self._somebody()
        self.job.kill(worker, signal.SIGTERM)
        return "terminated in good order"

    def _drain(self) -> str:
        worker = self._somebody()
        self.job.tell(self.job.service.drain, (worker,), "the test wants it to leave")
        return "drained"

    def _raise(self) -> str:
        self._order_its_end("exception", END_SECONDS)
        return "an exception"

    def _replace_roster(self) -> str:
        """Let the roster be away for a while, as when the launcher is killed."""
        self._wait_for_world()
        self.job.lose_roster()
        time.sleep(self._random.uniform(0, 0.5))
        self.job.find_roster()
        return "another roster"

    # --- faults of NCCL, which happen when a worker comes to them ----------------------------------------------

    def _die_in_nccl(self) -> str:
        self._order_its_end("die", 2.0)
        return "killed in a collective"

    def _break_gpu(self) -> str:
        self._order_its_end("sticky", 2.0)
        return "a GPU breaks"

    def _nccl_error(self) -> str:
        """Have a worker's NCCL report an error, which costs no worker."""
        return self._fault_in(self._random.choice(self.living), "async_error", "an error of NCCL")

    def _hang_in_init(self) -> str:
        victim = self._somebody()
        hanging = self._random.choice(self.living)
        before = self._faults(hanging)
        self._order(hanging, "init_hangs")
        self._until_taken(hanging)
        self.job.kill(victim)
        return self._named(hanging, before, "killed, and NCCL hangs in an init")

    def _hang_in_abort(self) -> str:
        worker = self._somebody()
        self._order(worker, "abort_hangs")
        self._until_taken(worker)
        others = [each for each in self._holders() if each != worker]
        if len(others) > 1:
            self.living.remove(others[0])
            self.job.kill(others[0])
        by_itself = self.job.workers[worker].wait(ABORT_SECONDS)
        self.job.kill(worker)
        return f"NCCL hangs in an abort; {'ended by itself' if by_itself else 'killed'}"

    def _fault_in(self, worker: int, what: str, name: str) -> str:
        """Have a worker come to a fault that costs no worker; return the name."""
        before = self._faults(worker)
        self._order(worker, what)
        self._until_taken(worker)
        return self._named(worker, before, name)

    def _named(self, worker: int, before: int, name: str) -> str:
        """Return the name of a fault; it is another one if the worker has not come to it after a while."""
        deadline = time.monotonic() + FAULT_SECONDS
        while self._faults(worker) == before:
            if time.monotonic() > deadline:
                return f"{name}, later or never"
            time.sleep(0.01)
        return name

    def _faults(self, worker: int) -> int:
        """Return how many faults a worker's NCCL has had, as of its last step."""
        path = Path(self._directory.name) / f"faults-{worker}"
        return int(path.read_text()) if path.exists() else 0

    def _order_its_end(self, what: str, seconds: float) -> None:
        """Have a worker end in this way, or kill it if it does not get there."""
        worker = self._somebody()
        self._order(worker, what)
        self.job.workers[worker].wait(seconds)
        self.job.kill(worker)

    def _order(self, worker: int, what: str) -> None:
        path = Path(self._directory.name) / f"order-{worker}"
        path.with_suffix(".new").write_text(what)
        path.with_suffix(".new").rename(path)

    def _until_taken(self, worker: int) -> None:
        deadline = time.monotonic() + END_SECONDS
        while (Path(self._directory.name) / f"order-{worker}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _wait_for_world(self) -> None:
        """Wait until all living workers are in one world, and one of them holds the state."""
        deadline = time.monotonic() + END_SECONDS
        while set(self.job.service.world) != set(self.living) or not self._holders():
            if time.monotonic() > deadline:
                for worker in self.job.workers:
                    self.job.kill(worker, signal.SIGUSR1)  # They print where their threads are.
                time.sleep(1)
                self._fail(f"the world {self.job.service.world} did not become {self.living}")
            self._look_for_ends()
            time.sleep(0.01)

    def _wait_for_holdings(self) -> None:
        """Wait until a world has lasted for as long as it takes a worker in it to look at what it holds."""
        book = self._book(self.living[0])

        def steps() -> int:
            return book.read_text().count("\n")

        # What it does in its world's fourth step. One step more may have begun in the world before.
        goal, deadline = steps() + 5, time.monotonic() + END_SECONDS
        while steps() < goal:
            if time.monotonic() > deadline:
                self._fail(f"worker {self.living[0]} takes no steps")
            self._look_for_ends()
            time.sleep(0.01)

    def _look_for_ends(self) -> None:
        for worker in self.living:
            if self.job.workers[worker].has_answered():
                try:
                    self._fail(f"worker {worker} came back with {self.job.workers[worker].receive()}")
                except (WorkerFailed, WorkerGone) as error:
                    self._fail(f"worker {worker}: {error}")

    def _fail(self, why: str) -> NoReturn:
        tail = "\n".join(self.job.log[-100:])
        raise AssertionError(
            f"{why}; of {self.living} have the state: {self._holders()}; {self.job.waits[-1:]}; evicted: "
            f"{self.job.evicted[-3:]}\n{tail}"
        )

    # --- the oracle --------------------------------------------------------------------------------------------

    def wrongs(self, ended: list[Ended]) -> list[str]:
        """Return what is wrong with what came of it; nothing, if all is right."""
        wrong = []
        if len({(each.step, each.digest) for each in ended}) != 1:
            wrong.append(f"the workers have ended differently: {ended}")
        if self._device == "cpu":  # The streams of a fake GPU are threads of its own.
            wrong += [growth for each in ended for growth in _growths(each.holdings)]
        steps, doubts = self._steps_taken()
        wrong += doubts
        if sorted(steps) != list(range(len(steps))):
            wrong.append(f"steps are missing, or twice: {sorted(steps)[:20]} ... {max(steps)}")
        epochs: dict[int, Counter[int]] = {}
        for epoch, used, _ in steps.values():
            epochs.setdefault(epoch, Counter()).update(used)
        last = max(epochs)
        for epoch, used_in_it in epochs.items():
            twice = [index for index, count in used_in_it.items() if count > 1]
            missing = [index for index in range(SAMPLES) if index not in used_in_it]
            if twice or (missing and epoch != last):
                wrong.append(f"epoch {epoch}: used more than once {twice}, not at all {missing}")
        return wrong

    def _steps_taken(self) -> tuple[dict[int, list[Any]], list[str]]:
        """Return what each step has used, as the workers' books say, and where they disagree."""
        books = {
            worker: self._book(worker).read_text() if self._book(worker).exists() else ""
            for worker in sorted(self.job.workers, key=lambda worker: worker not in self.living)
        }
        return steps_taken(books, self.living)


def steps_taken(books: Mapping[int, str], living: Collection[int]) -> tuple[dict[int, list[Any]], list[str]]:
    """Return what each step has used, and where books of workers disagree about it.

    The last step of a worker that was killed may have counted for it alone: then the others have taken a step of this
    number again, and theirs counts. But it may also have counted for all who were there, of whom nobody wrote it down
    and lived on: a worker that came after it got it with the state, and wrote down only the next one. So it fills a
    gap, if there is one.

    Args:
        books: what each worker wrote down, a line for each step.
        living: the workers that were not killed.
    """
    steps: dict[int, list[Any]] = {}
    wrong = []
    last: dict[int, list[Any]] = {}
    for worker, text in books.items():
        *whole, half = text.split("\n")
        lines = [json.loads(line) for line in whole]
        if worker not in living and not half and lines:
            step, *seen = lines.pop()
            last.setdefault(step, seen)
        for step, *seen in lines:
            if steps.setdefault(step, seen) != seen:
                wrong.append(f"worker {worker} sees step {step} otherwise than others: {seen} and {steps[step]}")
    end = max(steps, default=0)
    return {step: seen for step, seen in last.items() if step < end} | steps, wrong


def _growths(holdings: Sequence[Holdings]) -> list[str]:
    """Return what has become more from world to world, among worlds of the same size.

    A worker that has another one on its host has a thread more, which waits for that one's death.
    """
    first: dict[tuple[int, bool], Holdings] = {}
    grown = []
    for now in holdings[FIRST_WORLDS:]:
        before = first.setdefault((now.size, "farandole-peer" in now.threads), now)
        if (
            len(now.threads) > len(before.threads)
            or now.descriptors > before.descriptors
            or now.mappings > before.mappings + FREE_MAPPINGS
            or now.resident > before.resident + FREE_RESIDENT
        ):
            grown.append(f"a worker held {before}, and later {now}")
    return grown[-1:]


def main() -> int:
    """Run a soak, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "little"))
    parser.add_argument("--gpu", action="store_true", help="train on a fake GPU")
    parser.add_argument("--hosts", type=int, default=1, help="behave as on so many hosts, which agree over a tree")
    given = parser.parse_args()
    where = f"{', on a fake GPU' if given.gpu else ''}{f', on {given.hosts} hosts' if given.hosts > 1 else ''}"
    print(f"soak: {given.events} events, seed {given.seed}{where}", flush=True)
    gpu = build() if given.gpu else None
    nursery = Nursery()
    # Of every worker that ever was, the test keeps two descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    soak = Soak(nursery, given.seed, say=lambda text: print(f"  {text}", flush=True), gpu=gpu, hosts=given.hosts)
    try:
        ended = soak.run(given.events)
        wrongs = soak.wrongs(ended)
        print(f"{dict(soak.counts)}; {len(soak.job.changes)} worlds, {ended[0].step} steps")
        for each in ended:
            print(f"  {each.size} {each.step} {each.digest[:8]}: {each.holdings[:1]} ... {each.holdings[-1:]}")
        for wrong in wrongs:
            print(f"wrong: {wrong}")
        return 1 if wrongs else 0
    finally:
        soak.close()
        nursery.close()


if __name__ == "__main__":
    sys.exit(main())
