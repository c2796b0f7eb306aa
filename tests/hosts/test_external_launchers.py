"""mpirun of both kinds starts workers on several hosts, and this launcher serves their roster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hosts.bed import Bed
from tests.hosts.jobs import FOLDER

PEERS = Path(os.environ.get("FARANDOLE_PEERS", f"{sys.prefix}/peers"))
SCRIPT = """
import array, os
from farandole.worker.core import basics, buffers
from farandole.worker.core.dtype import Sum
basics.init()
numbers = array.array("d", [basics.rank()])
buffers.allreduce(numbers, op=Sum)
# In one write: MPICH puts its prefix before each, wherever in a line that is.
place = (basics.rank(), basics.size(), basics.local_rank(), os.uname().nodename, numbers[0])
os.write(1, f"place {' '.join(map(str, place))}\\n".encode())
"""


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_through_mpirun(hosts: Callable[..., Bed], flavour: str) -> None:
    programs = PEERS / flavour / "bin"
    if not (programs / "mpirun").exists():
        pytest.skip(f"{flavour} is not installed in {PEERS}; `make setup` installs it")
    bed = hosts(2, keep=[str(PEERS)])
    for host in (*bed.hosts, bed.desk):
        host.path(FOLDER).mkdir()
        (host.path(FOLDER) / "train.py").write_text(SCRIPT)
    path = f"{programs}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    words = ["run", "--launcher", "mpirun", "-H", "h1:2,h2:2", "python", "train.py"]
    done = bed.desk.run([sys.executable, "-m", "farandole", *words], folder=FOLDER, environment={"PATH": path})
    places = sorted(line.partition("place ")[2] for line in done.stdout.splitlines() if "place " in line)
    assert (done.returncode, places) == (0, ["0 4 0 h1 6.0", "1 4 1 h1 6.0", "2 4 0 h2 6.0", "3 4 1 h2 6.0"]), (
        done.stderr
    )
