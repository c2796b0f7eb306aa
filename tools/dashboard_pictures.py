"""Take the pictures of the dashboard for the documentation, of a real job that loses a worker and gets another one.

    python tools/dashboard_pictures.py            # into docs/how-to/pictures; needs chromium and chromium-driver

Four workers train, one of them slower than the others; one is killed, and a new one joins. The picture of 256 ranks
shows a simulated job (`tests/support/played_dashboard.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))

from browsers import chromium, look_as, missing  # noqa: E402
from played_dashboard import TOKEN, PlayedSource, served  # noqa: E402

PICTURES = ROOT / "docs/how-to/pictures"
JOB = "otter-12"
WAIT_SECONDS = 120.0
TRAINING = """
import os, time, torch
import farandole.torch as hvd
from torch.utils.data import TensorDataset

hvd.init()
torch.manual_seed(1)
samples = TensorDataset(torch.randn(20000, 64), torch.randint(0, 10, (20000,)))
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters())
loader = hvd.elastic.ElasticLoader(samples, global_batch_size=32)
slow = os.environ["FARANDOLE_WORKER"] == "2"
loop = hvd.elastic.steps(loader, epochs=100, model=model, optimizer=optimizer)
for x, y in loop:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    time.sleep(0.09 if slow else 0.05)
    if slow and loop.step == 60:
        time.sleep(3)  # Long enough for a warning.
    optimizer.step()
    if loop.step % 25 == 0:
        print(f"step {loop.step}: loss {loss.item():.3f}", flush=True)
"""


def until(fact: Callable[[], object], what: str) -> None:
    """Wait until `fact` is true, or raise an error."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not fact():
        if time.monotonic() > deadline:
            sys.exit(f"error: timed out waiting until {what}")
        time.sleep(0.2)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Path]:
    """Run the job in a directory; yield the file with its output."""
    (directory / "train.py").write_text(TRAINING)
    said = directory / "said"
    run = [sys.executable, "-m", "farandole", "run", "-np", "4", "--min-np", "2", "--job", JOB, "--stall-warning", "1"]
    words = [*run, "--timeline", "timeline.json", "python", "train.py"]
    with said.open("wb") as file:
        job = subprocess.Popen(words, cwd=directory, stdout=file, stderr=subprocess.STDOUT, env=environment(directory))
        try:
            yield said
        finally:
            stop = [sys.executable, "-m", "farandole", "stop", JOB]
            subprocess.run(stop, env=environment(directory), timeout=90, check=False)
            job.wait(60)


def environment(directory: Path) -> dict[str, str]:
    """Return an environment with a separate home for jobs."""
    return {**os.environ, "XDG_CACHE_HOME": str(directory / "cache"), "NO_COLOR": "1"}


def workers_of(directory: Path) -> dict[int, int]:
    """Return the process id of each worker of this job, by number."""
    found = {}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            variables = (process / "environ").read_bytes().split(b"\0")
            number = next((each[17:] for each in variables if each.startswith(b"FARANDOLE_WORKER=")), b"")
            ours = f"XDG_CACHE_HOME={directory / 'cache'}".encode() in variables
            if number and ours and b"train.py" in (process / "cmdline").read_bytes():
                found[int(number)] = int(process.name)
    return found


def play(directory: Path, said: Path) -> None:
    """Make the job run, stall, lose worker 1, and get another one."""
    until(lambda: re.search("step 100:", said.read_text()), "100 steps are done")
    workers = workers_of(directory)
    os.kill(workers[1], signal.SIGKILL)
    until(lambda: re.search(r"worker \d+ on \S+ joins as rank", said.read_text()), "another worker joins")
    time.sleep(14)  # The rates are those of the last 10 s.


def shoot(driver: Any, url: str, name: str, width: int, theme: str, focus: str = "") -> None:
    """Take one picture of a page, with the height of the page."""
    look_as(driver, width, 900, theme)
    driver.get(url)
    until(lambda: driver.find_elements("css selector", ".tile"), "the page is drawn")
    time.sleep(2.5)
    height = driver.execute_script("return document.documentElement.scrollHeight")
    look_as(driver, width, min(height, 2000), theme)
    time.sleep(1.5)
    driver.save_screenshot(str(PICTURES / f"{name}.png"))
    print(f"{PICTURES / name}.png")


def main() -> int:
    """Take all pictures."""
    if lacks := missing():
        print(f"error: {lacks}", file=sys.stderr)
        return 1
    from farandole.control.dashboard.sources import source_for

    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        directory = Path(folder)
        with running(directory) as said:
            play(directory, said)
            source = source_for(JOB, "local", environment(directory))
            with served(source, JOB) as url:
                shoot(driver, f"{url}/?token={TOKEN}", "dashboard", 1100, "light")
                shoot(driver, f"{url}/?token={TOKEN}", "dashboard-narrow", 400, "dark")
        with served(PlayedSource(256)) as url:
            shoot(driver, f"{url}/?token={TOKEN}", "dashboard-256", 1100, "dark")
    return 0


if __name__ == "__main__":
    sys.exit(main())
