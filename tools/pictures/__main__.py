"""Create the pictures of real runs in docs/pictures: `python -m tools.pictures`. It takes about a minute.

terminal.svg    an elastic job in which a worker is killed and replaced timeline.svg    a step of two workers
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.pictures import terminal, timeline

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
ELASTIC = "farandole run -np 3 --min-np 2 python examples/elastic_digits.py --pause 0.05 --epochs 6"


class Killer:
    """Kills a worker of the job in the picture when its second epoch begins."""

    def __init__(self) -> None:
        self._job = ""

    def __call__(self, line: str) -> None:
        if named := re.search(r"farandole: job ([\w-]+);", line):
            self._job = named[1]
        if "epoch 2 of" in line:
            kill = ["farandole", "kill", self._job, "--rank", "2"]
            subprocess.run(kill, check=True, timeout=20, stdout=subprocess.DEVNULL)


def main() -> None:
    """Run the job, and write the pictures."""
    os.chdir(ROOT)
    FOLDER.mkdir(exist_ok=True)
    written = terminal.record(ELASTIC, Killer())
    if not re.search("killed by SIGKILL; .* go on", written):
        sys.exit(f"no loss was seen in this run; try again\n{written}")
    (FOLDER / "terminal.svg").write_text(terminal.picture("a worker is killed while it trains", ELASTIC, written))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timeline.json"
        command = ["farandole", "run", "-np", "2", "--timeline", str(file), "python", "examples/digits.py"]
        subprocess.run([*command, "--epochs", "2"], check=True, timeout=120, stdout=subprocess.DEVNULL)
        (FOLDER / "timeline.svg").write_text(timeline.picture(file, "allreduce."))


if __name__ == "__main__":
    main()
