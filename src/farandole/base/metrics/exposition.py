"""Exposition of a reading in Prometheus' formats, by prometheus-client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from farandole.base.metrics.metric_table import COUNTER, HISTOGRAM, INFO, METRICS
from farandole.base.metrics.readings import STEP_SECONDS, Histogram, Reading, Sample

_FAMILIES: dict[str, Any] = {COUNTER: CounterMetricFamily, INFO: InfoMetricFamily, HISTOGRAM: HistogramMetricFamily}


class ReadingCollector(Collector):
    """A collector that takes a reading when it is scraped.

    Args:
        read: returns the present reading; called in a thread of the endpoint.
    """

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Any]:
        """Yield a family for each metric that the reading has."""
        return families(self._read())

    def describe(self) -> Iterable[Any]:
        """Return nothing, so that registration does not take a reading."""
        return ()


def families(reading: Reading) -> Iterator[Any]:
    """Yield a reading as metric families, in the order in which its metrics first appear."""
    found: dict[str, Any] = {}
    for each in reading:
        name = each[0]
        row = METRICS[name]
        family = found.get(name)
        if family is None:
            # An info's labels are its value.
            labels = () if row.kind == INFO else row.labels
            family = found[name] = _FAMILIES.get(row.kind, GaugeMetricFamily)(name, row.meaning, labels=labels)
        _add(family, each)
    yield from found.values()


def _add(family: Any, each: Sample | tuple[str, Histogram]) -> None:
    if not isinstance(each, Sample):
        histogram = each[1]
        bounds = [*map(str, STEP_SECONDS), "+Inf"]
        family.add_metric([], list(zip(bounds, accumulate(histogram.counts), strict=True)), sum_value=histogram.total)
    elif METRICS[each.name].kind == INFO:
        family.add_metric([], dict(zip(METRICS[each.name].labels, each.labels, strict=True)))
    else:
        family.add_metric(each.labels, each.value)


def make_exposition(read: Callable[[], Reading]) -> Callable[[str], tuple[bytes, str]]:
    """Return a function that takes an Accept header and returns the reading as text, with its content type."""
    registry = CollectorRegistry()
    registry.register(ReadingCollector(read))

    def expose(accept: str) -> tuple[bytes, str]:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    return expose
