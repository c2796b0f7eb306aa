"""The training that the workers of `played_jobs` run, and its record of the used samples.

Parameters, gradients and states are numbers, so that the right result is known.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pytest
from played_jobs import Worker

from farandole.errors import HorovodInternalError
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic import step_loop
from farandole.worker.elastic.batches import ConstantGlobalBatch, KeepRate
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.ledger import Ledger

EPOCHS = 2


class Kind(NamedTuple):
    """The properties of a job."""

    workers: int = 3
    samples: int = 17
    batch: int = 6
    faults: int = 2
    calls_before: bool = False
    calls_after: bool = False
    calls_from: int = 0
    """The step in which the first call of the body is made."""
    optimizers: int = 1
    keeps_gradients: bool = True
    changing: bool = False
    """Whether some workers change their reduced gradients."""
    changes: tuple[str, ...] = ("kill",)
    early: bool = False
    """Whether faults may happen before there is a state."""
    stops: bool = False
    """Whether a worker stops the training in its fourth step."""
    loops: int = 1
    """The number of loops, one after the other."""
    parts: int = 0
    """The number of parts in which the state is sent to newcomers while the others train; 0: it is sent at once."""
    on_device: bool = False
    """Whether gradients are in device buckets with a twin, from the second step of each set of ranks on."""
    while_forming: bool = False
    """Whether faults mostly happen to workers that are about to form a world."""


class Batch(NamedTuple):
    data: Any
    shares: Sequence[Any]
    samples: int
    total: int
    ledger: Ledger


class Loader:
    """A loader whose samples are indices."""

    def __init__(self, kind: Kind) -> None:
        self.ledger = Ledger(kind.samples, seed=3)
        self._policy = ConstantGlobalBatch(kind.batch)
        self.used: list[list[int]] = []

    def counts(self, world_size: int) -> tuple[int, ...]:
        return self._policy.counts(world_size)

    def next(self, world_size: int, rank: int) -> Batch | None:
        if not self.ledger.left:
            return None
        shares = self.ledger.take(self.counts(world_size))
        indices = self.ledger.indices(shares[rank])
        total = sum(end - begin for share in shares for begin, end in share)
        return Batch(indices or None, shares, len(indices), total, self.ledger)

    def borrow(self, batch: Batch) -> Any:
        share = next(share for share in batch.shares if share)
        return self.ledger.indices(share)[:1]

    def commit(self, batch: Batch, lost: Collection[int] = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        self.used.append([index for share in shares for index in self.ledger.indices(share)])
        self.ledger = self.ledger.commit(batch.shares, lost)

    def next_epoch(self) -> None:
        self.ledger = self.ledger.next_epoch()


def gradient(indices: Sequence[int]) -> float:
    """Return the mean of numbers that depend on the samples."""
    return sum(float(index * index + 1) for index in indices) / len(indices)


class Optimizer:
    """Reduces two gradients as `farandole.worker.gradients.reducer` does, and records the results.

    Random choices on each rank determine which reductions begin early.
    """

    def __init__(self, worker: Worker, name: str, kind: Kind) -> None:
        assert worker.session is not None
        self._session = worker.session
        self._random = worker.job.random
        self._name = name
        self._keeps = kind.keeps_gradients
        self._changes = kind.changing and worker.number % 2 == 1
        """Whether this worker changes its reduced gradients after its step."""
        self._begun: dict[str, tuple[int, Any]] = {}
        self._own = 0.0
        self._on_device = kind.on_device
        self._twins: dict[str, tuple[float, float]] = {}
        """The gradients that are sent from a device, and the factors of this rank's own gradients in them."""
        self._buckets: dict[str, float] = {}
        """The results of reductions, which an abort leaves undefined."""
        self._has_buckets = False
        self._times_made_alike = 0
        self._is_lost = False
        self._reduced: float | None = None
        self._is_intact = True

    def backward(self, own: float) -> None:
        self._own = own
        self._twins = {}
        if self._times_made_alike != self._session.times_made_alike:
            self._times_made_alike, self._has_buckets = self._session.times_made_alike, False
        self._begin("0")
        again = self._session.retry
        assert again is not None
        if again.launched() and self._random.random() < 0.7:
            self._begin("1")
            self._begin("ballot")

    def step(self) -> float | None:
        self._complete()
        self._begun = {}
        if self._is_lost:
            self._is_lost = False
            return None
        self._has_buckets = self._on_device
        if self._changes:
            self._is_intact = False
        return self._reduced

    def _complete(self) -> None:
        again = self._session.retry
        assert again is not None
        while True:
            for part in ("0", "1", "ballot"):
                if part not in self._begun:
                    self._begin(part)
            results = [each for part in ("0", "1", "ballot") if (each := self._finish(part)) is not None]
            if len(results) == 3 and len({generation for generation, _ in self._begun.values()}) == 1:
                means = [self._buckets[part] for part in ("0", "1")]
                # One that was sent several times may have been scaled by several shares.
                assert means[0] == pytest.approx(means[1], rel=1e-12)
                self._reduced, self._is_intact = means[0], True
                again.count([any(asked) for asked in zip(*results[2], strict=True)], self)
                return
            if again.recover(self):
                return
            if not self._keeps:
                self._is_lost = True
                again.give_out_again()
                return
            here = self._session.world.generation
            self._begun = {part: each for part, each in self._begun.items() if each[0] == here}

    def are_intact(self) -> bool:
        return self._is_intact

    def give(self) -> float | None:
        assert self._is_intact
        return self._reduced

    def take(self, reduced: float) -> None:
        self._reduced, self._is_intact = reduced, True

    def _begin(self, part: str) -> None:
        again = self._session.retry
        assert again is not None
        generation = self._session.world.generation
        name = f"{self._name}.{part}"
        own: Any = self._own * again.share
        if part == "ballot":
            own = list(again.ballot(self._changes or not self._keeps))
        elif self._has_buckets:
            # On ranks that do not agree on this, it is another request.
            name += ".bucket"
            own = self._put_into_twin(part, again.share)
        try:
            self._begun[part] = generation, self._session.engine.begin(name, pickle.dumps(own))
        except HorovodInternalError:
            self._begun.pop(part, None)

    def _finish(self, part: str) -> list[Any] | None:
        if part not in self._begun:
            return None
        try:
            everyone = list(map(pickle.loads, self._session.engine.wait(self._begun[part][1])))
        except HorovodInternalError:
            del self._begun[part]
            # The result, or a part of it, may have come although the request has failed.
            self._buckets[part] = float("nan")
            return None
        if part != "ballot":
            self._buckets[part] = sum(everyone) / len(everyone)
        return everyone

    def _put_into_twin(self, part: str, share: float) -> float:
        own, before = self._twins.get(part, (self._own * share, share))
        if before not in (share, 0.0):
            own *= share / before
        self._twins[part] = own, share
        return own


class Trained:
    """A number for each optimizer, and the results of all steps."""

    def __init__(self, worker: Worker, kind: Kind) -> None:
        assert worker.session is not None
        self._session = worker.session
        self.job = worker.job
        self.checkpoints = LoopCheckpoints()
        self.reduces_once = kind.optimizers == 1
        self.optimizers = [Optimizer(worker, f"grad{number}", kind) for number in range(kind.optimizers)]
        self.parts = kind.parts
        self.state = [0.5 + worker.number] * max(kind.optimizers, kind.parts)
        self.reduced: list[float] = []

    def take_step(self, number: int) -> None:
        reduced = self.optimizers[number].step()
        if reduced is not None:
            self.reduced.append(reduced)
            for part in range(len(self.state)):
                if part == number or self.parts:
                    self.state[part] = self.state[part] * 0.75 + reduced + part

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> Stream | None:
        allows = may_stream and self.parts > 0
        if self._session.exchange_values("parts", allows)[sources[0]]:
            return Stream(self._session, self, sources, receivers)
        self.transfer_at_once(sources, receivers)
        return None

    def transfer_at_once(self, sources: Sequence[int], receivers: Sequence[int]) -> None:
        rank = self._session.world.rank
        states = self._session.exchange_values("state", self.state if rank in sources else None)
        assert all(states[source] == states[sources[0]] for source in sources)
        self._session.exchange_values("checksum", None)
        if rank in receivers:
            self.state = list(states[sources[0]])

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        rank = self._session.world.rank
        assert isinstance(gradients, Optimizer) == (rank in sources or rank in receivers)
        given = gradients.give() if isinstance(gradients, Optimizer) and rank in sources else None
        everyone = self._session.exchange_values("gradients", given)
        assert all(everyone[source] == everyone[sources[0]] for source in sources)
        if isinstance(gradients, Optimizer) and rank in receivers:
            gradients.take(everyone[sources[0]])

    def has_unused_gradients(self) -> bool:
        return False

    def scale_rate(self, factor: float) -> None:
        raise AssertionError("the rate stays")


class Stream:
    """Sends one part of the state between any two steps, and checks at the end that all are up to date."""

    def __init__(self, session: Any, trained: Trained, sources: Sequence[int], receivers: Sequence[int]) -> None:
        self._session = session
        self._trained = trained
        self._sources = sources
        self._is_receiver = session.world.rank in receivers
        self._sent = 0
        self._flights: list[tuple[int, Any]] = []
        if self._is_receiver:
            trained.state = [float("nan")] * trained.parts

    def send_some(self, seconds: float) -> bool:
        if self._sent == self._trained.parts:
            return True
        part = self._session.exchange_values("part", self._sent)[self._sources[0]]
        self._sent += 1
        value = None if self._is_receiver else self._trained.state[part]
        self._flights.append((part, self._session.engine.begin("flight", pickle.dumps(value))))
        return False

    def take(self) -> None:
        flights, self._flights = self._flights, []
        for part, begun in flights:
            values = list(map(pickle.loads, self._session.engine.wait(begun)))
            assert len({values[source] for source in self._sources}) == 1
            self._trained.state[part] = values[self._sources[0]]

    def finish(self) -> None:
        states = self._session.exchange_values("check", self._trained.state)
        if self._sent == self._trained.parts and not self._flights:
            assert all(state == states[0] for state in states), states
        if self._is_receiver:
            self._trained.state = list(states[self._sources[0]])

    def abandon(self) -> None:
        self._flights = []


class Ended(NamedTuple):
    """The observations of a worker."""

    state: list[float]
    steps: list[int]
    """For each loop, the number of steps; 0 for one that was over when the worker joined."""


class Book(NamedTuple):
    """A worker's record, which outlives it: by loop and step, the used samples and the result."""

    steps: dict[tuple[int, int], tuple[int, list[int], list[float]]]


def training(kind: Kind, books: dict[int, Book]) -> Any:
    """Return the program of a worker."""

    def train(worker: Worker) -> Ended:
        books[worker.number] = Book({})
        took = []
        for number in range(kind.loops):
            trained, loop = go_through(worker, number)
            took.append(loop.step)
        return Ended(trained.state, took)

    def go_through(worker: Worker, number: int) -> tuple[Trained, step_loop.Loop]:
        session = worker.session
        assert session is not None
        loader, trained = Loader(kind), Trained(worker, kind)
        loop = step_loop.Loop(loader, trained, epochs=EPOCHS, rate=KeepRate())
        book = books[worker.number]
        commit = loader.commit

        def write_down(batch: Batch, lost: Collection[int] = ()) -> None:
            epoch = loader.ledger.epoch
            commit(batch, lost)
            if loop._worlds.has_state:
                book.steps[number, loop.step] = epoch, loader.used[-1], list(trained.state)
            expected = gradient(loader.used[-1]) if loader.used[-1] else 0.0
            for reduced in trained.reduced[-1:]:
                assert reduced == pytest.approx(expected), (reduced, expected, loop.step)

        loader.commit = write_down  # type: ignore[method-assign]
        for indices in loop:
            again = session.retry
            assert again is not None

            def meet(where: str, step: int = loop.step) -> None:
                assert session.retry is not None
                everyone = session.retry.run(lambda: session.exchange_values("body", (where, step)))
                assert set(everyone) == {(where, step)}, everyone

            for place, optimizer in enumerate(trained.optimizers):
                optimizer.backward(gradient(indices))
                if kind.calls_before and loop.step >= kind.calls_from:
                    meet(f"before {place}")
                if kind.stops and loop.step == 3 and worker.number % 2:
                    loop.stop()
                trained.take_step(place)
            if kind.calls_after and loop.step >= kind.calls_from:
                meet("after")
        return trained, loop

    return train
