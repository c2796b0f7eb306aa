"""`farandole bench`: measure how fast collectives are on this machine, compared with copying."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farandole.base.display.tables import lines, show
from farandole.base.display.wording import bytes_text
from farandole.base.request_kind import COLLECTIVE_KINDS
from farandole.control.cli.parser import Parser
from farandole.control.cli.run import run_until_end
from farandole.control.launcher.job.machine import look
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.errors import SpecError

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "uint8": "u8"}
_SIZES = "4,1K,16K,64K,256K,1M,4M,16M,64M"
_SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_EPILOG = """\
examples:
  farandole bench -np 2
  farandole bench -np 4 --collective allgather --sizes 1K,1M --json
  farandole bench --algorithms

Each call blocks and starts in Python. A size is the number of bytes that each worker contributes. The copy columns show
how long all workers take to copy that many bytes at once: no collective of that size can be much faster.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole bench -np N [options]",
        description="Measures one collective among N workers of this machine, at several sizes.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("-np", "--num-proc", metavar="N", type=int, help="number of workers")
    add(
        "--collective",
        choices=tuple(COLLECTIVE_KINDS),
        default="allreduce",
        help="the collective to measure (default: allreduce)",
    )
    add(
        "--sizes",
        metavar="BYTES,...",
        default=_SIZES,
        help=f"sizes to measure, with suffixes K, M and G (default: {_SIZES})",
    )
    add("--dtype", choices=tuple(_DTYPES), default="float32", help="element type (default: float32)")
    add("--memory", choices=("arena", "ordinary"), default="arena", help="where the data is stored (default: arena)")
    add("--transport", choices=("auto", "shm", "tcp"), help="how workers exchange data (default: auto)")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a worker's variable")
    add("--algorithms", action="store_true", help="list which algorithm is chosen in which case; measure nothing")
    add("--json", action="store_true", help="print JSON instead of a table")


def execute(options: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    if options.algorithms:
        return _print_algorithms(options.json)
    return _measure(options)


def _print_algorithms(as_json: bool) -> int:
    # In a separate process: this one never loads the native library.
    done = subprocess.run(
        [sys.executable, "-m", "farandole.worker.observe.speed", "algorithms"], stdout=subprocess.PIPE
    )
    if done.returncode == 0:
        rows = json.loads(done.stdout)
        if as_json:
            print(json.dumps(rows, indent=1))
        else:
            _show_algorithms(rows)
    return done.returncode


def _measure(options: argparse.Namespace) -> int:
    if options.num_proc is None:
        raise SpecError("-np is missing", "farandole bench -np 2")
    task = {
        "collective": options.collective,
        "sizes": read_sizes(options.sizes),
        "dtype": _DTYPES[options.dtype],
        "memory": options.memory,
    }
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        out = Path(folder, "result.json")
        spec = LaunchSpec(
            command=(sys.executable, "-m", "farandole.worker.observe.speed", json.dumps(task | {"out": str(out)})),
            num_proc=options.num_proc,
            settings={} if options.transport is None else {"transport": options.transport},
            exports=tuple(options.exports),
        )
        outcome = run_until_end(spec, look())
        if outcome.report:
            print(outcome.report, file=sys.stderr)
        if outcome.exit_code == 0:
            result = json.loads(out.read_text())
            print(json.dumps(result, indent=1) if options.json else render(result))
        return outcome.exit_code


def read_sizes(text: str) -> list[int]:
    """Parse sizes such as `4,1K,16M`.

    Raises:
        SpecError: a size is not a number of bytes above 0.

    Example:
        >>> read_sizes("4,1K")
        [4, 1024]
    """
    sizes = []
    for word in text.split(","):
        factor = _SUFFIXES.get(word[-1:].upper(), 1)
        digits = word[:-1] if factor > 1 else word
        if not digits.isdecimal() or int(digits) == 0:
            raise SpecError(f"{word!r} is not a valid size", "write bytes as --sizes 4,64K,16M")
        sizes.append(int(digits) * factor)
    return sizes


# --- tables: numbers are right-aligned, words left-aligned ----------------------------------------------------------

_SPEED_HEAD = ("size", "median us", "best us", "GB/s", "copy GB/s", "of copy", "algorithm", "because")
_ALGORITHM_HEAD = ("collective", "world", "from", "to", "algorithm", "because")


def _show_algorithms(rows: Sequence[Mapping[str, Any]]) -> None:
    show([_ALGORITHM_HEAD, *map(_algorithm_row, rows)], right=(2, 3))


def render(result: Mapping[str, Any]) -> str:
    """Return the measurements as a table for people."""
    where = f"{result['workers']} workers on {result['hosts']} host{'s' if result['hosts'] != 1 else ''}"
    title = f"{result['collective']} of {result['dtype']}, {where} ({result['links']}), {result['memory']} memory\n\n"
    return title + "\n".join(lines([_SPEED_HEAD, *map(_speed_row, result["rows"])], right=range(6)))


def _speed_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    size, median, copy = row["bytes"], row["median_us"], row["copy_us"]
    return (
        bytes_text(size),
        f"{median:.1f}",
        f"{row['best_us']:.1f}",
        f"{size / median / 1000:.2f}",
        f"{size / copy / 1000:.2f}",
        f"{100 * copy / median:.0f} %",
        row["algorithm"],
        row["reason"],
    )


def _algorithm_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    shape = f"{row['workers']} workers on {row['hosts']} host{'s' if row['hosts'] != 1 else ''}"
    if row["hosts"] not in (1, row["workers"]):
        shape += f", {row['fewest_on_a_host']} or more on each"
    upper = "" if row["to_bytes"] is None else f"below {bytes_text(row['to_bytes'])}"
    return (row["collective"], shape, bytes_text(row["from_bytes"]), upper, row["algorithm"], row["reason"])
