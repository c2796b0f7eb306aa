"""The measurements of a training that the launcher keeps."""

from __future__ import annotations

from farandole.base.wire.rendezvous import Measures
from farandole.control.launcher.supervise.job_measures import MOST_MEASURES, JobMeasures


def test_latest_measurements_are_kept_with_one_of_each_host() -> None:
    measures = JobMeasures()

    def measure(host: str, local: float, step: float = 1.0) -> None:
        found = Measures(32, 512, 64, hosts=1, workers=1, local=local, step=step, sync=0.0, on=(host,))
        measures.add(found)

    measure("once", 32.0)
    for local in range(2 * MOST_MEASURES):
        measure("now", float(local))
    measure("now", float(2 * MOST_MEASURES - 5), step=2.0)
    kept = measures.latest
    assert len(kept) == MOST_MEASURES and kept[0].on == ("once",)
    assert kept[-1].step == 2.0 and kept[-2].local == 2.0 * MOST_MEASURES - 1
