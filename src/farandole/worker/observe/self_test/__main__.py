"""The entry point of the workers of `farandole test`.

    python -m farandole.worker.observe.self_test thorough
    python -m farandole.worker.observe.self_test quick

Rank 0 sends the report to the launcher, as the result of the job.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import msgspec

from farandole.base.self_test.report import Node, Pair, Problem, SelfTestReport
from farandole.base.self_test.verdict import judge, suspects
from farandole.base.wire.rendezvous import World
from farandole.base.wire.roster_client import RosterClient
from farandole.worker.core import basics, buffers
from farandole.worker.core.session import Session
from farandole.worker.observe.self_test.collectives import check_all
from farandole.worker.observe.self_test.pairs import QUICK, THOROUGH, Links, measure_whole
from farandole.worker.observe.self_test.schedule import rounds

# How often slow links are measured again. A machine may have been busy for a moment; a link that is slow stays slow.
_SECOND_LOOKS = 2
_MOST_LOOKED_AT_AGAIN = 5
_TELL_SECONDS = 2.0


def main() -> None:
    """Run the test, and send the report."""
    basics.init()
    session = basics.current()
    report = examine(session, quick=sys.argv[1] == "quick")
    if session.world.rank == 0 and session.settings.roster is not None:
        # The report needs a separate connection, because that of the session may be used only for listening.
        settings = session.settings
        with RosterClient.connect(session.settings.roster, settings.secret, worker=settings.rank) as roster:
            roster.send_result(msgspec.json.encode(report))
    basics.shutdown()


def examine(session: Session, quick: bool) -> SelfTestReport:
    """Check and measure everything, on all ranks at once."""
    world, effort, tell = session.world, QUICK if quick else THOROUGH, _teller(session.world.rank)
    checks, problems = check_all(world.rank, world.size, quick, tell)
    nodes = nodes_of(world)
    links = Links(session.engine, world.rank, nodes, effort)
    report = SelfTestReport(
        workers=world.size,
        hosts=len(set(world.hostnames)),
        links=session.engine.links,
        checks=checks,
        problems=_gathered(problems),
        nodes=nodes,
        pairs=links.measure_all(tell),
        at_once=max(map(len, rounds(len(nodes))), default=0),
        whole=measure_whole(effort),
    )
    for _ in range(_SECOND_LOOKS):
        if doubtful := suspects(judge(report))[:_MOST_LOOKED_AT_AGAIN]:
            tell(f"links: another look at {len(doubtful)} that seem slow")
            report = with_second_look(report, links.measure_again(doubtful))
    return report


def nodes_of(world: World) -> list[Node]:
    """Return the ends of links: the first worker of each host or, if there is only one host, every worker."""
    first = {host: world.hostnames.index(host) for host in dict.fromkeys(world.hostnames)}
    if len(first) > 1:
        return [Node(host, rank) for host, rank in first.items()]
    return [Node(f"rank {rank}", rank) for rank in range(world.size)]


def with_second_look(report: SelfTestReport, again: list[Pair]) -> SelfTestReport:
    """Return the report with the better of two measurements of some pairs."""
    looks = {(pair.one, pair.other): pair for pair in again}
    pairs = []
    for pair in report.pairs:
        second = looks.get((pair.one, pair.other))
        pairs.append(pair if second is None else pair.better_of(second))
    return msgspec.structs.replace(report, pairs=pairs)


def _gathered(problems: list[Problem]) -> list[Problem]:
    """Return the problems of all ranks, on all ranks."""
    lines, _ = buffers.gather(bytearray(b"".join(msgspec.json.encode(problem) + b"\n" for problem in problems)))
    return [msgspec.json.decode(line, type=Problem) for line in lines.splitlines()]


def _teller(rank: int) -> Callable[[str], None]:
    """Return a function that reports the progress, on rank 0 and not too often."""
    told = time.monotonic()

    def tell(text: str) -> None:
        nonlocal told
        if rank == 0 and time.monotonic() - told > _TELL_SECONDS:
            told = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main()
