"""The command line: measure, print tables, write JSON and the document."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.elastic.bench import Bench, benching
from benchmarks.elastic.events import EVENTS, Event
from benchmarks.elastic.peers import PEERS, Peer
from benchmarks.elastic.report import (
    OURS,
    EventResult,
    Results,
    begin_results,
    has_region,
    machine_line,
    section,
    write_document,
)
from benchmarks.peers.base import ROOT

RESULTS = ROOT / "benchmarks" / "results"
NUMBERS = "elastic.json"
DOCUMENT = ROOT / "docs" / "contributing" / "elastic.md"
REPETITIONS, QUICK_REPETITIONS = 50, 3
SECONDS, QUICK_SECONDS = 600.0, 60.0


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    listed = "\n".join(f"  {event.name:12}{event.title}" for event in EVENTS)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elastic",
        description="Measure what failures and changes cost farandole, torchft and torchrun.",
        epilog=f"events:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few trials: only shows that it works")
    parser.add_argument("--only", metavar="EVENT,...", help="only these events (default: all)")
    parser.add_argument("--peers", metavar="NAME,...", help="only these libraries (default: all)")
    parser.add_argument("--repetitions", type=int, help=f"trials of each (default: {REPETITIONS})")
    parser.add_argument(
        "--seconds", type=float, help=f"seconds for all trials of an event with a library (default: {SECONDS:g})"
    )
    parser.add_argument(
        "--peer-seconds", type=float, help="the same for a library other than farandole (default: as --seconds)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER", help="for JSON")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="show an earlier run")
    parser.add_argument("--document", action="store_true", help="also write tables into docs/contributing/elastic.md")
    arguments = parser.parse_args()
    # An error now costs less than one after an hour of measuring.
    if arguments.document and not has_region(DOCUMENT):
        parser.error(f"{DOCUMENT} has no region <!-- bench:elastic --> ... <!-- /bench:elastic --> for the tables")
    arguments.events = _choose(parser, "event", arguments.only, EVENTS)
    arguments.peers = _choose(parser, "library", arguments.peers, PEERS)
    arguments.repetitions = arguments.repetitions or (QUICK_REPETITIONS if arguments.quick else REPETITIONS)
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    arguments.peer_seconds = arguments.peer_seconds or arguments.seconds
    return arguments


def _choose(parser: argparse.ArgumentParser, kind: str, names: str | None, all_of_them: tuple) -> tuple:
    """Return the elements with these names, in the usual order."""
    wanted = names.split(",") if names else [each.name for each in all_of_them]
    unknown = sorted(set(wanted) - {each.name for each in all_of_them})
    if unknown:
        parser.error(f"unknown {kind} {', '.join(unknown)}; choose from {', '.join(each.name for each in all_of_them)}")
    return tuple(each for each in all_of_them if each.name in wanted)


def measure(arguments: argparse.Namespace) -> Results:
    """Let every event happen to every library. Print each table as soon as it is complete, and keep it on disk."""
    results = begin_results(arguments.quick)
    print(machine_line(results), flush=True)
    with benching(arguments.repetitions, arguments.seconds) as bench:
        for event in arguments.events:
            results.events.append(measure_event(bench, event, arguments.peers, arguments.peer_seconds))
            results.write(arguments.output / NUMBERS)
            print(f"\n{section(event, results.events[-1])}", flush=True)
    return results


def measure_event(bench: Bench, event: Event, peers: tuple[Peer, ...], peer_seconds: float) -> EventResult:
    """Let an event happen to every library that is installed.

    Args:
        bench: the bench, whose seconds are those for farandole.
        event: the event.
        peers: the libraries, farandole among them.
        peer_seconds: the seconds for each of the other libraries.
    """
    result, started = EventResult(event.name), time.monotonic()
    for peer in (peer for peer in peers if peer.takes_part(event.name)):
        why = peer.missing()
        if why:
            result.missing[peer.name] = why
        else:
            is_ours = peer.name == OURS
            result.trials[peer.name] = event.take(bench if is_ours else replace(bench, seconds=peer_seconds), peer)
    result.seconds = time.monotonic() - started
    return result


def main() -> None:
    """Do what the command line says."""
    arguments = parse_arguments()
    # As with Ctrl-C, all that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.source:
        results = Results.read(arguments.source)
        by_name = {event.name: event for event in EVENTS}
        print(machine_line(results))
        for result in results.events:
            print(f"\n{section(by_name[result.name], result)}")
    else:
        results = measure(arguments)
        print(f"\nJSON is in {arguments.output / NUMBERS}", file=sys.stderr)
    if arguments.document:
        write_document(DOCUMENT, EVENTS, results)
        results.write(DOCUMENT.parent / "elastic" / "numbers.json")


if __name__ == "__main__":
    main()
