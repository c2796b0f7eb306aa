"""`farandole test`: what is measured in which order, what is right, what is slow, and how it is reported."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
import textwrap

import msgspec
import pytest

from farandole.base.self_test.matrix import render
from farandole.base.self_test.report import Node, Pair, Problem, SelfTestReport, Whole
from farandole.base.self_test.verdict import judge, suspects
from farandole.base.wire.rendezvous import World
from farandole.worker.core.dtype import Average, DType, Max, Product, Sum
from farandole.worker.observe.self_test import formulas
from farandole.worker.observe.self_test.__main__ import nodes_of, with_second_look
from farandole.worker.observe.self_test.pairs import Effort
from farandole.worker.observe.self_test.schedule import messages, rounds

# --- in which order -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 8, 9, 10, 17, 64])
def test_every_pair_is_measured_once(nodes: int) -> None:
    plan = rounds(nodes)
    assert sorted(pair for pairs in plan for pair in pairs) == list(itertools.combinations(range(nodes), 2))
    for pairs in plan:
        assert len(set(itertools.chain.from_iterable(pairs))) == 2 * len(pairs), "a node is in one pair at a time"
    if nodes <= 8:
        assert all(len(pairs) == 1 for pairs in plan)
    else:
        assert len(plan) == nodes - 1 + nodes % 2, "no more rounds than it takes"


def test_messages_fit_the_link() -> None:
    for rate in (1e3, 1e6, 1e8, 1e9, 1e10, 1e12):
        size, count = messages(rate, 0.05)
        assert 64 << 10 <= size <= 4 << 20 and 1 <= count <= 8
        assert size * count <= max(64 << 10, rate * 0.05)


def test_many_rounds_make_samples_shorter() -> None:
    effort = Effort(samples=4, seconds=0.05, total_seconds=10.0)
    assert effort.per_sample(1) == 0.05
    assert effort.per_sample(1000) * 1000 * 2 * 5 == pytest.approx(10.0)


# --- what is right --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", formulas.DTYPES)
def test_elements_come_back_as_they_were(dtype: DType) -> None:
    numbers = [0, 1, 2, 6, 100]
    elements = formulas.encode(numbers, dtype)
    assert len(elements) == 5 * formulas.element_bytes(dtype)
    assert formulas.decode(elements, dtype) == numbers


def test_expected_results_of_reductions() -> None:
    assert [formulas.contribution(Sum, rank) for rank in range(2)] == [[0, 1, 2, 0, 1, 2, 0], [1, 2, 0, 1, 2, 0, 1]]
    assert formulas.reduced(Sum, DType.F32, 2) == [1, 3, 2, 1, 3, 2, 1]
    assert formulas.reduced(Average, DType.F32, 2) == [0.5, 1.5, 1, 0.5, 1.5, 1, 0.5]
    assert formulas.reduced(Average, DType.I32, 2) == [0, 1, 1, 0, 1, 1, 0]
    assert formulas.reduced(Max, DType.U8, 2) == [1, 2, 3, 4, 5, 6, 6]
    assert formulas.reduced(Product, DType.I64, 2) == [2, 2, 1, 1, 1, 1, 1]


def test_expected_results_fit_the_type() -> None:
    assert formulas.can_be_asked(Sum, DType.U8, 127) and not formulas.can_be_asked(Sum, DType.U8, 128)
    assert formulas.can_be_asked(Average, DType.BF16, 128) and not formulas.can_be_asked(Average, DType.BF16, 129)
    assert formulas.can_be_asked(Max, DType.U8, 10**6)


@pytest.mark.parametrize("dtype", formulas.DTYPES)
@pytest.mark.parametrize("count", [1, 6, 7, 8, 1001])
@pytest.mark.parametrize("first", [0, 3])
def test_one_wrong_element_is_found(dtype: DType, count: int, first: int) -> None:
    grain = formulas.element_bytes(dtype)
    wanted = [place + 1 for place in range(formulas.PERIOD)]
    period = formulas.encode([*wanted[first:], *wanted[:first]], dtype)
    right = formulas.tiled(period, count * grain)
    assert formulas.what_differs(right, wanted, dtype, first) == ""
    for place in {0, count // 2, count - 1}:
        wrong = right[:]
        wrong[place * grain : (place + 1) * grain] = formulas.encode([40], dtype)
        expected = wanted[(first + place) % formulas.PERIOD]
        assert formulas.what_differs(wrong, wanted, dtype, first) == f"element {place} is 40, not {expected}"


def test_averages_may_be_rounded_and_no_more() -> None:
    third = formulas.encode([0.334], DType.F16)
    assert formulas.what_differs(third, [1 / 3], DType.F16).startswith("element 0 is")
    nearest = formulas.encode([1 / 3], DType.F16)
    assert formulas.what_differs(nearest, [1 / 3], DType.F16) == ""
    assert not math.isclose(formulas.decode(nearest, DType.F16)[0], 1 / 3, rel_tol=1e-5)


def test_one_wrong_byte_is_found() -> None:
    right = formulas.bytes_of(3, 1, 1000)
    assert formulas.which_byte_differs(right, formulas.bytes_of(3, 1, 1000)) == ""
    assert right != formulas.bytes_of(1, 3, 1000)
    wrong = right[:]
    wrong[700] ^= 1
    assert formulas.which_byte_differs(wrong, right) == f"byte 700 is {wrong[700]}, not {right[700]}"
    assert formulas.which_byte_differs(right[:-1], right) == "999 bytes came, not 1000"


# --- what is slow -----------------------------------------------------------------------------------------------


def report_of(
    rates: list[list[float]], latencies: dict[tuple[int, int], float] | None = None, hosts: int | None = None
) -> SelfTestReport:
    """Return what was found out about nodes of which each sends to each with these GB/s, in 20 us if nothing else."""
    places = range(len(rates))
    nodes = [Node(f"h{place + 1}" if hosts != 1 else f"rank {place}", 2 * place) for place in places]
    pairs = [
        Pair(
            one,
            other,
            (latencies or {}).get((one, other), 20.0),
            rates[one][other] * 1e9,
            rates[other][one] * 1e9,
            f"10.0.0.{one + 1} -> 10.0.0.{other + 1}" if hosts != 1 else "shared memory",
        )
        for one, other in itertools.combinations(places, 2)
    ]
    return SelfTestReport(
        workers=2 * len(rates),
        hosts=len(rates) if hosts is None else hosts,
        links="shm+tcp",
        checks=71,
        problems=[],
        nodes=nodes,
        pairs=pairs,
        at_once=1 if len(rates) <= 8 else len(rates) // 2,
        whole=Whole(84.2, 16 << 20, 0.0241),
    )


def even(nodes: int, rate: float = 1.2) -> list[list[float]]:
    return [[rate] * nodes for _ in range(nodes)]


def texts(report: SelfTestReport) -> list[str]:
    return [finding.text for finding in judge(report)]


def test_links_that_differ_a_little_are_good() -> None:
    noise = random.Random(5)
    for nodes in (2, 3, 5, 12):
        rates = [[noise.uniform(0.8, 1.4) for _ in range(nodes)] for _ in range(nodes)]
        times = {pair: noise.uniform(20, 200) for pair in itertools.combinations(range(nodes), 2)}
        assert judge(report_of(rates, times)) == []


def test_a_slow_host_is_named_instead_of_its_links() -> None:
    """With three hosts, most links are slow if one host is."""
    rates = even(3)
    for other in (0, 1):
        rates[2][other] = rates[other][2] = 0.12
    (finding,) = judge(report_of(rates))
    assert finding.text == "h3 sends and receives slowly: 0.12 GB/s at best, where others do 1.2 GB/s"
    assert set(finding.slow) == {(0, 2), (2, 0), (1, 2), (2, 1)}
    assert suspects([finding]) == [(0, 2), (1, 2)]
    assert "ethtool" in finding.hint


def test_a_host_that_is_slow_one_way() -> None:
    rates = even(4)
    rates[1] = [0.3] * 4
    assert texts(report_of(rates)) == ["h2 sends slowly: 0.3 GB/s at best, where others do 1.2 GB/s"]
    rates = even(4)
    for row in rates:
        row[0] = 0.2
    assert texts(report_of(rates)) == ["h1 receives slowly: 0.2 GB/s at best, where others do 1.2 GB/s"]


def test_a_slow_link_between_good_hosts() -> None:
    rates = even(4)
    rates[0][2] = rates[2][0] = 0.1
    assert texts(report_of(rates)) == [
        "between h1 and h3 go 0.1 GB/s (10.0.0.1 -> 10.0.0.3); the two do 1.2 GB/s with others"
    ]
    rates[0][2] = 1.2
    assert texts(report_of(rates)) == [
        "from h3 to h1 go 0.1 GB/s (10.0.0.1 -> 10.0.0.3); the two do 1.2 GB/s with others"
    ]


def test_a_slow_host_does_not_hide_a_slow_link() -> None:
    rates = even(5)
    for other in range(5):
        rates[4][other] = rates[other][4] = 0.2
    rates[0][1] = rates[1][0] = 0.3
    slow_host, slow_link = texts(report_of(rates))
    assert slow_host.startswith("h5 sends and receives slowly") and slow_link.startswith(
        "between h1 and h2 go 0.3 GB/s"
    )


def test_two_hosts_can_only_be_compared_with_the_way_back() -> None:
    assert judge(report_of(even(2, 0.01))) == []
    assert texts(report_of([[0, 1.2], [0.3, 0]])) == [
        "from h2 to h1 go 0.3 GB/s (10.0.0.1 -> 10.0.0.2); the other way it is 1.2 GB/s"
    ]


def test_a_host_far_away() -> None:
    far = {(0, 3): 2000.0, (1, 3): 2100.0, (2, 3): 1900.0}
    (finding,) = judge(report_of(even(4), far))
    assert finding.text == "h4 is 1900 us away from all, where others have 20 us"
    assert suspects([finding]) == sorted(far)


def test_a_detour_between_two_hosts() -> None:
    assert texts(report_of(even(4), {(0, 3): 2000.0})) == [
        "h1 and h4 are 2000 us apart (10.0.0.1 -> 10.0.0.4); the two have 20 us with others"
    ]


def test_workers_of_one_host_may_differ() -> None:
    rates = even(4)
    rates[0][1] = rates[1][0] = 0.3
    assert judge(report_of(rates, {(0, 1): 3000.0}, hosts=1)) == []
    rates[0][1] = 0.05
    (finding,) = judge(report_of(rates, hosts=1))
    assert finding.text == "from rank 0 to rank 1 go 0.05 GB/s; the two do 1.2 GB/s with others"
    assert "what else runs there" in finding.hint


def test_wrong_results_come_first() -> None:
    problems = [Problem(f"allreduce sum of {count} f32", 3, "element 0 is 1, not 2") for count in range(1, 8)]
    (finding,) = judge(msgspec.structs.replace(report_of(even(3)), problems=problems))
    assert finding.text.startswith("wrong results: allreduce sum of 1 f32 on rank 3: element 0 is 1, not 2; ")
    assert finding.text.endswith("; and 2 more")


def test_no_links_no_findings() -> None:
    assert judge(report_of([[0.0]], hosts=1)) == []


def test_result_that_is_slow_only_once_is_not_blamed_on_the_link() -> None:
    rates = even(3)
    rates[0][1] = 0.1
    report = report_of(rates)
    doubtful = suspects(judge(report))
    assert doubtful == [(0, 1)]
    again = [pair for pair in report_of(even(3)).pairs if (pair.one, pair.other) in doubtful]
    assert judge(with_second_look(report, again)) == []
    assert judge(with_second_look(report, [])) == judge(report)


def test_links_are_between_hosts_or_else_between_workers() -> None:
    world = World(1, 0, 4, (), 0, 2, 0, 2, ("h2", "h2", "h1", "h1"))
    assert nodes_of(world) == [Node("h2", 0), Node("h1", 2)]
    world = msgspec.structs.replace(world, hostnames=("h1",) * 4)
    assert nodes_of(world) == [Node(f"rank {rank}", rank) for rank in range(4)]


# --- how it is told ---------------------------------------------------------------------------------------------


def shown(report: SelfTestReport) -> str:
    return render(report, judge(report))


def golden(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_all_good() -> None:
    assert shown(report_of([[0, 1.18, 1.2], [1.19, 0, 0.954], [1.21, 1, 0]])) == golden(
        """
        6 workers on 3 hosts (shm+tcp)

        collectives   71 checks, all right
        allreduce     84 us for 4 B, 24.1 ms for 16 MiB (0.696 GB/s)
        links         3 pairs of the first workers of two hosts, each while the others were silent

        GB/s, from the row to the column
              h1     h2      h3
        h1     -   1.18     1.2
        h2  1.19      -   0.954
        h3  1.21      1       -

        us that 4 bytes take, one way
            h1   h2   h3
        h1   -   20   20
        h2  20    -   20
        h3  20   20    -

        all good
        """
    )


def test_problems_are_marked_and_explained() -> None:
    rates = even(3)
    for other in (0, 1):
        rates[2][other] = rates[other][2] = 0.0121
    report = report_of(rates, {(0, 1): 1500.0})
    problem = Problem("barrier", 1, "nobody waited")
    report = msgspec.structs.replace(report, problems=[problem])
    wrong, slow, far = (finding.hint for finding in judge(report))
    assert shown(report) == golden(
        f"""
        6 workers on 3 hosts (shm+tcp)

        collectives   71 checks, 1 wrong
        allreduce     84 us for 4 B, 24.1 ms for 16 MiB (0.696 GB/s)
        links         3 pairs of the first workers of two hosts, each while the others were silent

        GB/s, from the row to the column
                h1       h2       h3
        h1       -      1.2   0.0121*
        h2     1.2        -   0.0121*
        h3  0.0121*  0.0121*       -

        us that 4 bytes take, one way
              h1     h2   h3
        h1     -   1500*  20
        h2  1500*     -   20
        h3    20     20    -

        problem: wrong results: barrier on rank 1: nobody waited
        hint: {wrong}

        problem: h3 sends and receives slowly: 0.0121 GB/s at best, where others do 1.2 GB/s
        hint: {slow}

        problem: h1 and h2 are 1500 us apart (10.0.0.1 -> 10.0.0.2); the two have 20 us with others
        hint: {far}

        3 problems found
        """
    )


def test_of_many_hosts_only_what_is_slow_is_shown() -> None:
    rates = even(20)
    rates[0][1] = 0.1
    lines = shown(report_of(rates)).splitlines()
    assert lines[4] == "links         190 pairs of the first workers of two hosts, up to 10 at the same time"
    assert lines[6:8] == [
        "GB/s          0.1 to 1.2, half of them above 1.2",
        "us            20 to 20 for 4 bytes one way, half of them above 20",
    ]
    assert lines[9].startswith("problem: from h1 to h2 go 0.1 GB/s")
    assert lines[-1] == "1 problem found" and len(lines) == 13


def test_one_worker_has_no_links() -> None:
    report = msgspec.structs.replace(report_of([[0.0]], hosts=1), workers=1, links="alone")
    assert shown(report) == golden(
        """
        1 worker on 1 host (alone)

        collectives   71 checks, all right

        all good
        """
    )


def test_the_judge_needs_no_library() -> None:
    script = (
        "import sys; import farandole.base.self_test.matrix, farandole.worker.observe.self_test.schedule;"
        "assert not {'farandole.worker.core.binding', 'farandole.worker.core.basics', 'numpy', 'torch'}"
        "& set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
