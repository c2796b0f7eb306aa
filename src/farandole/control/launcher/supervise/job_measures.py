"""The measurements of a training with an adaptive batch size."""

from __future__ import annotations

from collections import Counter

from farandole.base.wire.rendezvous import Measures

MOST_MEASURES = 64
"""Maximum number of configurations whose latest measurement is kept."""


class JobMeasures:
    """Keeps the latest measurement of each configuration."""

    def __init__(self) -> None:
        self._by_configuration: dict[tuple[tuple[str, ...], int, float], Measures] = {}

    @property
    def latest(self) -> tuple[Measures, ...]:
        """The latest measurement of each configuration, the latest of all last."""
        return tuple(self._by_configuration.values())

    def add(self, measures: Measures) -> None:
        """Record a measurement."""
        kept = self._by_configuration
        configuration = (measures.on or ("",) * measures.hosts, measures.workers, measures.local)
        kept.pop(configuration, None)
        kept[configuration] = measures
        if len(kept) > MOST_MEASURES:
            # Those of the hosts with the most go first: one measurement suffices for the speed of a type.
            most, _ = Counter(hosts for hosts, _, _ in kept).most_common(1)[0]
            del kept[next(key for key in kept if key[0] == most)]
