"""The verdict on a report: wrong collectives, slow hosts and links, and hints.

A link is at most as fast as the slower one of its ends, so each end is judged first, by its best result with any other
node: a host with a slow cable is slow with all others, and is named instead of its links. Then each link is compared
with the other links of its two ends. Two nodes have one link, which can only be compared with its own other direction.

Workers of one host share its cores and caches, so their results vary widely, and only a large difference counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from farandole.base.self_test.report import SelfTestReport

Direction = tuple[int, int]
"""A direction of a link: indices of the sending and the receiving node in the list of nodes."""


@dataclass(frozen=True)
class Limits:
    """The limits beyond which a result counts as slow."""

    part: float
    """Smallest fraction of the bandwidth of others."""
    times: float
    """Largest multiple of the latency of others; `more_us` must be exceeded as well."""
    more_us: float
    """Largest difference from the latency of others, in microseconds."""


BETWEEN_HOSTS = Limits(0.5, 5.0, 200.0)
WITHIN_A_HOST = Limits(0.1, 10.0, 5000.0)


@dataclass(frozen=True)
class Finding:
    """A problem in a report."""

    text: str
    hint: str
    slow: tuple[Direction, ...] = ()
    """Directions with low bandwidth."""
    far: tuple[Direction, ...] = ()
    """Links with high latency, each as one of its directions."""


def judge(report: SelfTestReport) -> list[Finding]:
    """Return all problems of a report."""
    limits = BETWEEN_HOSTS if report.hosts > 1 else WITHIN_A_HOST
    return [*_wrong(report), *_slow(report, limits), *_far(report, limits)]


def suspects(findings: Iterable[Finding]) -> list[Direction]:
    """Return the pairs of nodes that should be measured again, the lower node first."""
    return sorted({(min(pair), max(pair)) for finding in findings for pair in (*finding.slow, *finding.far)})


def gigabytes(rate: float) -> str:
    """Return bytes per second as text in GB/s."""
    return f"{rate / 1e9:.3g}"


# --- results ----------------------------------------------------------------------------------------------------

_MOST_SHOWN = 5


def _wrong(report: SelfTestReport) -> list[Finding]:
    if not report.problems:
        return []
    shown = [f"{problem.check} on rank {problem.rank}: {problem.what}" for problem in report.problems[:_MOST_SHOWN]]
    more = len(report.problems) - len(shown)
    text = "wrong results: " + "; ".join(shown) + (f"; and {more} more" if more else "")
    return [
        Finding(
            text,
            "do not train on these hosts before this is understood. Try them one by one (-H HOST:2): memory that fails "
            "shows on one host only. If all are wrong, report it with what farandole doctor prints",
        )
    ]


# --- bandwidth --------------------------------------------------------------------------------------------------


def _slow(report: SelfTestReport, limits: Limits) -> list[Finding]:
    rates = {(pair.one, pair.other): pair.there for pair in report.pairs}
    rates |= {(pair.other, pair.one): pair.back for pair in report.pairs}
    if not rates:
        return []
    sent, received = _best(rates, 0), _best(rates, 1)
    senders, receivers = _slow_ends(sent, limits), _slow_ends(received, limits)
    ends = _slow_end_findings(report, rates, (sent, senders), (received, receivers))
    left = {way: rate for way, rate in rates.items() if way[0] not in senders and way[1] not in receivers}
    return [*ends, *_slow_link_findings(report, rates, left, limits, sent, received)]


def _best(rates: Mapping[Direction, float], end: int) -> dict[int, float]:
    best: dict[int, float] = {}
    for way, rate in rates.items():
        best[way[end]] = max(rate, best.get(way[end], 0.0))
    return best


def _slow_ends(best: Mapping[int, float], limits: Limits) -> set[int]:
    """Return the nodes whose best result is slow; none of two, because there is no third to compare them with."""
    typical = statistics.median(best.values())
    return {node for node, rate in best.items() if len(best) > 2 and rate < limits.part * typical}


def _slow_end_findings(
    report: SelfTestReport,
    rates: Mapping[Direction, float],
    sending: tuple[Mapping[int, float], set[int]],
    receiving: tuple[Mapping[int, float], set[int]],
) -> list[Finding]:
    findings = []
    (sent, senders), (received, receivers) = sending, receiving
    for node in sorted(senders | receivers):
        both = (("sends", sent, senders), ("receives", received, receivers))
        does = [(verb, best) for verb, best, slow in both if node in slow]
        own = max(best[node] for _, best in does)
        others = statistics.median(best[other] for _, best in does for other in best if other != node)
        ways = [way for way in rates if (way[0] == node and node in senders) or (way[1] == node and node in receivers)]
        text = (
            f"{_name(report, node)} {' and '.join(verb for verb, _ in does)} slowly: {gigabytes(own)} GB/s at best, "
            f"where others do {gigabytes(others)} GB/s"
        )
        findings.append(Finding(text, _hint(report, _END_HINT), tuple(ways)))
    return findings


def _slow_link_findings(
    report: SelfTestReport,
    rates: Mapping[Direction, float],
    left: Mapping[Direction, float],
    limits: Limits,
    sent: Mapping[int, float],
    received: Mapping[int, float],
) -> list[Finding]:
    """Compare each direction without a slow end with the best results of its ends, and with the opposite direction."""
    compared: dict[Direction, str] = {}
    for way, rate in left.items():
        elsewhere, back = min(sent[way[0]], received[way[1]]), way[::-1]
        if rate < limits.part * elsewhere:
            compared[way] = f"the two do {gigabytes(elsewhere)} GB/s with others"
        elif back in left and rate < limits.part * rates[back]:
            compared[way] = f"the other way it is {gigabytes(rates[back])} GB/s"
    findings = []
    for way, comparison in compared.items():
        both = way[::-1] in compared
        if both and way[0] > way[1]:
            continue  # The finding of the other direction covers both.
        ends = f"{_name(report, way[0])} {'and' if both else 'to'} {_name(report, way[1])}"
        slowest = min(rates[way], rates[way[::-1]]) if both else rates[way]
        text = f"{'between' if both else 'from'} {ends} go {gigabytes(slowest)} GB/s{_route(report, way)}; {comparison}"
        findings.append(Finding(text, _hint(report, _LINK_HINT), (way, way[::-1]) if both else (way,)))
    return findings


# --- latency ----------------------------------------------------------------------------------------------------


def _far(report: SelfTestReport, limits: Limits) -> list[Finding]:
    times = {(pair.one, pair.other): pair.latency_us for pair in report.pairs}
    best: dict[int, float] = {}
    for (one, other), time in times.items():
        best[one] = min(time, best.get(one, time))
        best[other] = min(time, best.get(other, time))
    typical = statistics.median(best.values()) if best else 0.0
    ends = [node for node, time in sorted(best.items()) if len(best) > 2 and _is_far(time, typical, limits)]
    findings = []
    for node in ends:
        text = f"{_name(report, node)} is {best[node]:.0f} us away from all, where others have {typical:.0f} us"
        ways = tuple(way for way in times if node in way)
        findings.append(Finding(text, _hint(report, _FAR_HINT), far=ways))
    for way, time in times.items():
        usual = max(best[node] for node in way)
        if not set(way) & set(ends) and _is_far(time, usual, limits):
            names = f"{_name(report, way[0])} and {_name(report, way[1])}"
            text = f"{names} are {time:.0f} us apart{_route(report, way)}; the two have {usual:.0f} us with others"
            findings.append(Finding(text, _hint(report, _FAR_HINT), far=(way,)))
    return findings


def _is_far(time: float, usual: float, limits: Limits) -> bool:
    return time > limits.times * usual and time > usual + limits.more_us


# --- words ------------------------------------------------------------------------------------------------------

_END_HINT = (
    "look at its cable, port and driver (ethtool DEVICE, ethtool -S DEVICE) and at who else uses its network; "
    "--network chooses another one"
)
_LINK_HINT = (
    "the two hosts are well, so it is the way between them: the switch, the route (ip route get ADDRESS), the size of "
    "packets (MTU); --network chooses another network"
)
_FAR_HINT = "is the way a detour (traceroute ADDRESS), such as a VPN? Are processors there asleep or busy?"
_BUSY_HINT = "workers of one host share it: see what else runs there (top), and on which cores workers run"


def _hint(report: SelfTestReport, between_hosts: str) -> str:
    return between_hosts if report.hosts > 1 else _BUSY_HINT


def _name(report: SelfTestReport, node: int) -> str:
    return report.nodes[node].name


def _route(report: SelfTestReport, way: Sequence[int]) -> str:
    pair = next(pair for pair in report.pairs if {pair.one, pair.other} == set(way))
    return f" ({pair.route})" if "->" in pair.route else ""
