"""One job of `python -m benchmarks queue --jobs training`: trains for real, at a speed that is known.

Each worker sleeps for every sample of its part of a batch. So the time of a step falls with the number of workers, as
it does where each worker has an accelerator of its own, although the workers of this benchmark share a few cores. It is
written with NumPy, so that it starts in a moment. The gradients are real, workers come and go, a job that was suspended
goes on at the step it had reached, and the loss to which it comes is printed: that of `models.train_alone`.

    farandole run -np 2 python -m benchmarks.sharing.training_job digits --steps 100 [--kept FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sharing import models
from benchmarks.sharing.timed_job import Kept, Nothing, Pace, add_arguments
from farandole.numpy.elastic.loader import IndexLoader
from farandole.numpy.elastic.step_reduction import Reductions
from farandole.numpy.elastic.transfer import transfer_arrays
from farandole.worker.core import basics
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import global_process_set
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.batches import KeepRate
from farandole.worker.elastic.step_loop import Loop
from farandole.worker.gradients.reduce_options import ReduceOptions


class Samples(IndexLoader):
    """Reads the samples of a model."""

    def __init__(self, data: models.Data, steps: int, batch: int) -> None:
        super().__init__(
            steps * batch,
            batch_size=None,
            global_batch_size=batch,
            batches=None,
            shuffle=True,
            seed=models.SEED,
            drop_last=False,
        )
        self._data = data

    def _once(self, indices: Any) -> Any:
        chosen = indices % len(self._data.targets)
        return self._data.inputs[chosen], self._data.targets[chosen]


class Weights(Nothing):
    """The trained arrays, by name: a `farandole.worker.elastic.framework.Trained`."""

    reduces_once = True

    def __init__(self, state: dict[str, Any], kept: Path | None) -> None:
        super().__init__(Kept(kept, state))
        self._state = state

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        came = transfer_arrays(lambda: self._state, dict, sources, receivers)
        if came is not None:
            self._state.update(came[0])

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        reduced: Any = gradients
        came = transfer_arrays(lambda: reduced.state_dict(), dict, sources, receivers)
        if came is not None:
            reduced.load_state_dict(came[0])


def main() -> None:
    """Take the steps, and print the loss and the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=models.MODELS)
    add_arguments(parser)
    given = parser.parse_args()
    basics.init()
    data, state = models.load(given.model), models.begin(given.model)
    reductions, options = Reductions(), ReduceOptions(Average, 1.0, 1.0, global_process_set)
    loader = Samples(data, given.steps, given.batch)
    pace = Pace(given.step, given.batch)
    for inputs, targets in Loop(loader, Weights(state, given.kept), epochs=1, rate=KeepRate()):
        found = models.gradients(state, inputs, targets)
        pace.wait(len(targets))
        models.update(state, reductions.reduce(models.names(state), found, options))
    if basics.rank() == 0:
        reached = models.quality(state, data)
        print(f"loss {reached.loss:.9f} accuracy {reached.accuracy:.3f}", flush=True)
    assert all(np.isfinite(array).all() for array in state.values())


if __name__ == "__main__":
    main()
