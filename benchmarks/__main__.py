"""The command line: measure, print tables, write JSON and plots."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from benchmarks.cases import CASES, Case
from benchmarks.cases.base import BENCHMARKS, KB, MB
from benchmarks.conductor import Conductor, Row, conducting
from benchmarks.peers.base import ROOT
from benchmarks.peers.other_checkout import check_checkout
from benchmarks.plots import draw
from benchmarks.report import CaseResult, Results, describe_machine, machine_line, section, write_document
from benchmarks.scope import Scope

RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = ROOT / "docs"
DOCUMENT_FOLDER = DOCUMENTS / "contributing" / "benchmarks"
ROUNDS, QUICK_ROUNDS = 5, 2
SECONDS, QUICK_SECONDS = 1.5, 0.2


def parse_size(text: str) -> int:
    """Read a number of bytes such as 4, 64K or 16M."""
    scale = {"K": KB, "M": MB}.get(text[-1:].upper(), 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isdecimal() or int(digits) == 0 or int(digits) * scale % 4:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of 4 bytes, such as 4, 64K or 16M")
    return int(digits) * scale


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    listed = "\n".join(f"  {case.letter}  {case.title}" for case in CASES)
    groups = sorted({case.group for case in CASES if case.group})
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure farandole against gloo, Open MPI, MPICH and what the machine can do, taking turns.",
        epilog=f"cases:\n{listed}\n\ngroups of cases: {', '.join(groups)}\n"
        "scheduling policies: scheduler --help; the queue, beside its simulation: queue --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases, or of groups; all by default")
    parser.add_argument("--quick", action="store_true", help="small and short: only shows that it works")
    parser.add_argument(
        "--worlds", type=int, nargs="+", metavar="N", help="numbers of workers, for cases that have several"
    )
    parser.add_argument(
        "--sizes",
        type=parse_size,
        nargs="+",
        metavar="BYTES",
        help="sizes such as 4 64K 16M, for cases that have several",
    )
    parser.add_argument("--rounds", type=int, help=f"turns of each contender in a measurement (default: {ROUNDS})")
    parser.add_argument("--seconds", type=float, help=f"about how long a measurement takes (default: {SECONDS:g})")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER", help="folder of JSON and plots")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="show an earlier run")
    parser.add_argument("--document", action="store_true", help="also write tables and plots into docs")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="also measure another checkout of farandole, in the same turns"
    )
    arguments = parser.parse_args()
    if arguments.against:
        arguments.against = arguments.against.absolute()
        try:
            check_checkout(arguments.against)
        except ValueError as error:
            parser.error(f"--against: {error}")
    names = [*(case.letter for case in CASES), *groups]
    unknown = sorted(set(arguments.cases) - set(names))
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; choose from {' '.join(names)}")
    arguments.rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    return arguments


def measure(cases: list[Case], arguments: argparse.Namespace) -> Results:
    """Run the cases. Print each table as soon as it is complete, and keep the results so far on disk."""
    scope = Scope(
        arguments.quick,
        tuple(arguments.worlds) if arguments.worlds else None,
        tuple(arguments.sizes) if arguments.sizes else None,
    )
    results = Results(describe_machine(), arguments.quick)
    print(machine_line(results), flush=True)
    with conducting(arguments.rounds, arguments.seconds, arguments.against) as conductor:
        for case in cases:
            conductor.say(f"{case.letter}: {case.title}")
            started, before = time.monotonic(), os.getloadavg()[0]
            rows = run_case(case, conductor, scope)
            took, load = time.monotonic() - started, (before, os.getloadavg()[0])
            results.cases.append(CaseResult(case.letter, rows, load, took))
            results.failures = list(conductor.failures)
            results.write(arguments.output / "numbers.json")
            print(f"\n{section(case, results.cases[-1])}", flush=True)
    return results


def run_case(case: Case, conductor: Conductor, scope: Scope) -> list[Row]:
    """Run a case. If it fails as a whole, the other cases keep their numbers."""
    try:
        return case.run(conductor, scope)
    except Exception:
        why = traceback.format_exc()
        conductor.failures.append(f"case {case.letter}: {why}")
        conductor.say(f"    warning: case {case.letter} failed:\n{why}")
        return []


def draw_all(results: Results, folder: Path) -> dict[str, list[Path]]:
    """Draw the plots of a run and return their files by case."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed; `make bench` installs it", file=sys.stderr)
        return {}
    by_letter = {case.letter: case for case in CASES}
    return {result.letter: draw(by_letter[result.letter], result.rows, folder) for result in results.cases}


def show(results: Results, arguments: argparse.Namespace) -> None:
    """Draw the plots, print the failures, and write the document if asked to."""
    folder = DOCUMENT_FOLDER if arguments.document else arguments.output
    figures = draw_all(results, folder)
    if arguments.document:
        for page in dict.fromkeys(case.document for case in CASES):
            document(page, results.of({case.letter for case in CASES if case.document == page}), figures)
    for failure in results.failures:
        print(f"\nnot measured: {failure}")
    print(f"\nplots and JSON are in {folder}", file=sys.stderr)


def document(page: str, results: Results, figures: dict[str, list[Path]]) -> None:
    """Write a page's tables and figures into it, and keep the numbers; do nothing if the page has none."""
    if not results.cases:
        return
    write_document(DOCUMENTS / page, CASES, results, figures)
    kept = DOCUMENT_FOLDER / ("numbers.json" if page == BENCHMARKS else f"{Path(page).stem}.json")
    if kept.exists():
        earlier = Results.read(kept)
        earlier.join(results)
        results = earlier
    results.write(kept)


def main() -> None:
    """Do what the command line says."""
    if sys.argv[1:2] == ["scheduler"]:
        # It simulates instead of measuring collectives, and has options of its own.
        from benchmarks import scheduler

        sys.exit(scheduler.main(sys.argv[2:]))
    if sys.argv[1:2] == ["queue"]:
        from benchmarks.sharing import bench

        sys.exit(bench.main(sys.argv[2:]))
    arguments = parse_arguments()
    # As with Ctrl-C, all that was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if arguments.source:
        results = Results.read(arguments.source)
        print(machine_line(results))
        for result in results.cases:
            print(f"\n{section(next(case for case in CASES if case.letter == result.letter), result)}")
    else:
        asked = arguments.cases
        results = measure([case for case in CASES if not asked or {case.letter, case.group} & set(asked)], arguments)
    show(results, arguments)


if __name__ == "__main__":
    main()
