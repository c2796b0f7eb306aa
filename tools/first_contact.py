"""Measure the time that a new user needs for a first distributed run, in a bare environment, and print the table.

    python tools/first_contact.py [WHEEL]          # default: the newest wheel for this machine in dist/

A bare environment is a new virtual environment with only its `bin` on the PATH, without a compiler, cmake or make.
PyTorch, whose download would take most of the time, comes from the environment of this command. The second machine is a
host made of namespaces (`tests/hosts`), which needs root on Linux; elsewhere its row has the reason why it is missing.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "first-contact"
"""A folder outside /tmp, because each host of `tests/hosts` has its own /tmp."""
SECONDS = 600

FIRST = """\
import numpy as np
import farandole.numpy as hvd

hvd.init()
print(hvd.allreduce(np.arange(3.0) * hvd.rank(), op=hvd.Sum))
"""
FAIL = (
    FIRST
    + """\
if hvd.rank() == 1:
    raise ValueError("bad sample 17")
hvd.barrier()
"""
)


class Row(NamedTuple):
    """A line of the table."""

    to: str
    commands: str
    seconds: Sequence[float]
    """The seconds of each command; empty: it was not measured."""
    why_not: str = ""

    def text(self) -> str:
        """Return the row as Markdown.

        Example:
            >>> Row("a", "`b`, `c`", (1.26, 3.0)).text()
            '| a | `b`, `c` | 1.3 + 3.0 |'
        """
        seconds = " + ".join(f"{each:.1f}" for each in self.seconds) or f"not measured: {self.why_not}"
        return f"| {self.to} | {self.commands} | {seconds} |"


class Bare:
    """A new environment without tools."""

    def __init__(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self.place = place
        self.bin = place / "venv" / "bin"

    def run(
        self, *words: object, code: int = 0, saying: str = "", environment: Mapping[str, str] | None = None
    ) -> float:
        """Run a command as a new user would, and return the seconds that it takes.

        Raises:
            SystemExit: it has another exit code, or its output is not as expected.
        """
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        began = time.monotonic()
        done = subprocess.run(
            list(map(str, words)),
            cwd=self.place,
            env={**inherited, **pip, "PATH": str(self.bin), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        said = done.stdout + done.stderr
        if done.returncode != code or not re.search(saying, said):
            raise SystemExit(f"error: {' '.join(map(str, words))} ended with {done.returncode}:\n{said}")
        return time.monotonic() - began


def measure(wheel: Path, bare: Bare) -> Iterator[Row]:
    """Yield the rows of the table."""
    farandole = bare.bin / "farandole"
    (bare.place / "first.py").write_text(FIRST)
    (bare.place / "fail.py").write_text(FAIL)
    made = bare.run(sys.executable, "-m", "venv", bare.place / "venv")
    tools = [tool for tool in ("cc", "c++", "gcc", "clang", "cmake", "make", "ninja") if (bare.bin / tool).exists()]
    assert not tools, f"{tools} came with the environment"
    pip = (bare.bin / "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:")
    installed = bare.run(*pip, "--constraint", ROOT / "constraints.txt", wheel, "numpy")
    ran = bare.run(farandole, "run", "-np", "2", "python", "first.py", saying=r"\[0\. 1\. 2\.\]")
    yield Row(
        "(a) a first distributed run",
        "`python3 -m venv venv`, `pip install farandole-*.whl numpy`, `farandole run -np 2 python first.py`",
        (made, installed, ran),
    )
    yield own_script(bare, farandole)
    failed = bare.run(farandole, "run", "-np", "2", "python", "fail.py", code=1, saying="bad sample 17")
    yield Row(
        "(c) a first failure that is understood",
        "`farandole run -np 2 python fail.py`, of which rank 1 raises `ValueError`: the report shows it",
        (failed,),
    )
    yield second_machine(bare)


def own_script(bare: Bare, farandole: Path) -> Row:
    """Convert a script for one process to a distributed one, and run it."""
    to = "(b) an own script, distributed"
    commands = "`farandole init --write train.py`, `farandole run -np 2 python train.py` (15 epochs of digits)"
    found = find_spec("torch")
    if found is None or found.origin is None or find_spec("sklearn") is None:
        return Row(to, commands, (), "no PyTorch and scikit-learn here")
    # Packages in the environment itself come first.
    (site,) = (bare.place / "venv" / "lib").glob("python*/site-packages")
    (site / "torch_from_elsewhere.pth").write_text(str(Path(found.origin).parents[1]))
    shutil.copy(ROOT / "tests" / "support" / "plain" / "torch_digits.py", bare.place / "train.py")
    written = bare.run(farandole, "init", "--write", "train.py")
    return Row(to, commands, (written, bare.run(farandole, "run", "-np", "2", "python", "train.py", saying="accuracy")))


def second_machine(bare: Bare) -> Row:
    """Run the first script on two hosts that have farandole."""
    to = "(d) a second machine"
    commands = "`farandole run -H h1:1,h2:1 --ship . python first.py`"
    sys.path.insert(0, str(ROOT))
    from tests.hosts.bed import Bed, why_not

    if reason := why_not():
        return Row(to, commands, (), reason)
    code = bare.place / "code"
    code.mkdir()
    (code / "first.py").write_text(FIRST)
    with Bed(2) as bed:
        began = time.monotonic()
        command = f"cd {code} && PATH={bare.bin}:$PATH farandole run -H h1:1,h2:1 --ship . python first.py"
        done = bed.desk.run(command, timeout=SECONDS)
        seconds = time.monotonic() - began
    if done.returncode or "[0. 1. 2.]" not in done.stdout:
        raise SystemExit(f"error: {command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return Row(to, commands, (seconds,))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", nargs="?", type=Path)
    given = parser.parse_args(arguments)
    wheels = sorted((ROOT / "dist").glob(f"farandole-[0-9]*_{platform.machine()}.whl"), key=os.path.getmtime)
    wheel = given.wheel.resolve() if given.wheel else wheels[-1] if wheels else None
    if wheel is None:
        print("error: dist/ has no wheel for this machine; `make wheel` builds it", file=sys.stderr)
        return 1
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, load {load:.0f} at the beginning, Python {platform.python_version()}, {wheel.name}\n"
    )
    print("| to | commands | seconds |\n|---|---|---|", flush=True)
    for row in measure(wheel, Bare(PLACE)):
        print(row.text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
