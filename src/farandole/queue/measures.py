"""What trainings measure, as the policies' `Report`. Pure; a job is its user's, so what makes no sense is left out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from farandole.scheduler.job import BatchLimits, Measurement, Noise, Report
from farandole.wire.rendezvous import Measures

_MOST = 2**40
"""Samples of a batch, or workers: more than there will be, and exact as a float."""


def report_of(measures: Sequence[Measures], ran_on: str, types: Collection[str]) -> Report | None:
    """Return what a job says of itself; None if nothing of it makes sense.

    Args:
        measures: the latest at the end.
        ran_on: the type of the hosts on which it runs.
        types: of all hosts of the queue.
    """
    told = [each for each in measures if _makes_sense(each)]
    if not told:
        return None
    last = told[-1]
    limits = BatchLimits(last.base, max(last.largest, last.base), dict.fromkeys(types, (1.0, float(last.most_in_pass))))
    measured = tuple(Measurement(each.hosts, each.workers, each.local, each.step, each.sync) for each in told)
    known = last.square > 0 and last.trace > 0
    return Report(
        limits,
        {ran_on: measured},
        noise=Noise(last.square, last.trace / last.base) if known else None,
        progress=last.progress,
        # It grows with each configuration, and when the noise is known. A model is not fitted again for less.
        version=len(told) * 2 + known,
    )


def _makes_sense(each: Measures) -> bool:
    numbers = (each.local, each.step, each.sync, each.square, each.trace, each.progress)
    return (
        all(math.isfinite(number) and number >= 0 for number in numbers)
        and all(1 <= count <= _MOST for count in (each.base, each.largest, each.most_in_pass, each.hosts, each.workers))
        and each.hosts <= each.workers
        and each.local > 0
        and each.step > each.sync
    )
