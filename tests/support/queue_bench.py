"""A queue for a test: a real daemon, real runners and launchers, on this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waiting import kill, processes_with, until

SUPPORT = Path(__file__).resolve().parent

# Workers that are in one world after the other until their job has had its time, and say how often it has begun.
ELASTIC = """\
import os, sys, threading, time
from farandole.base.wire.rendezvous import Changed, NotWanted, Revoked
from farandole.base.wire.roster_client import RosterClient

name, seconds, here = sys.argv[1], float(sys.argv[2]), os.environ["TEST_DIRECTORY"]
finish = os.path.join(here, f"{name}.finish")
worker = int(os.environ["FARANDOLE_WORKER"])
secret = bytes.fromhex(os.environ["FARANDOLE_SECRET"])
roster = RosterClient.connect(os.environ["FARANDOLE_ROSTER"], secret, worker=worker, search_timeout=60.0)
turn, world, news, steps = threading.Event(), None, 0, 0

def heard(message):
    global news
    if isinstance(message, Changed | Revoked):
        news = max(news, message.generation)
        turn.set()

def enter():
    global world
    generation = 0 if world is None else world.generation
    try:
        world = roster.join(f"c{worker}", None, host="h", generation=generation, trained=True)
    except NotWanted:
        sys.exit(0)
    print(f"generation {world.generation} rank {world.rank} of {world.size}", flush=True)

roster.listen(heard)
enter()
first = world.generation == 1 and world.rank == 0
if first:
    open(os.path.join(here, name), "a").write("begun\\n")
begun = time.monotonic()
while not os.path.exists(finish):
    steps += 1
    roster.report_progress(steps, 0.0)
    if turn.wait(0.02):
        turn.clear()
        if news >= world.generation:
            enter()
    if world.rank == 0 and time.monotonic() - begun > seconds:
        open(os.path.join(here, name), "a").write("done\\n")
        open(finish, "w").close()
roster.leave(world.generation)
"""


class QueueBench:
    """Starts a queue and its commands, and checks for remaining processes.

    Args:
        directory: the test's directory.
        hosts: the queue's hosts.
    """

    def __init__(self, directory: Path, hosts: str = "localhost:4") -> None:
        self.directory = directory
        self.state = directory / "queue"
        self.mark = f"TEST_MARK={directory}"
        self._hosts = hosts
        self.daemon: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(SUPPORT), os.environ.get("PYTHONPATH", "")]
        return {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FARANDOLE_PROGRESS")},
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "FARANDOLE_ON": "",
            "FARANDOLE_QUEUE": str(self.state),
            "FARANDOLE_FAILURE_DEADLINE": "20",
            "TEST_DIRECTORY": str(self.directory),
            "TEST_MARK": self.mark.partition("=")[2],
        }

    # --- the daemon --------------------------------------------------------------------------------------------------

    def start(self, *options: str) -> None:
        """Start the queue as an administrator would."""
        code, _, err = self.ask("queue", "start", "--hosts", self._hosts, *options)
        assert code == 0, err

    def start_daemon(self) -> None:
        """Restart the daemon, without waiting for it."""
        command = [sys.executable, "-m", "farandole.control.queue.daemon", str(self.state)]
        with open(self.state / "log", "ab") as log:
            self.daemon = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return int((self.state / "lock").read_text())

    def kill_daemon(self) -> None:
        """Kill the daemon, in any state: it may not serve yet."""
        if self.daemon is None:
            kill(self.pid)
            return
        self.daemon.kill()
        self.daemon.wait(30)
        self.daemon = None

    # --- commands ----------------------------------------------------------------------------------------------------

    def ask(self, *words: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run a command to its end; return its exit code, output and error output."""
        done = subprocess.run(
            [sys.executable, "-m", "farandole", *words],
            env={**self.environment, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.directory,
        )
        return done.returncode, done.stdout, done.stderr

    def submit(self, name: str, *words: str) -> None:
        code, out, err = self.ask("submit", "--detach", "--name", name, *words)
        assert (code, out) == (0, f"{name}\n"), err

    def status(self, name: str) -> dict[str, Any]:
        code, out, err = self.ask("status", name, "--json")
        assert code == 0, err
        return dict(json.loads(out))

    def is_(self, name: str, state: str) -> bool:
        return bool(self.status(name)["state"] == state)

    def becomes(self, name: str, state: str, seconds: float = 60) -> None:
        until(lambda: self.is_(name, state), lambda: f"{name} is {state}: {self.status(name)}; {self.log}", seconds)

    @property
    def log(self) -> str:
        return (self.state / "log").read_text()[-2000:] if (self.state / "log").exists() else ""

    # --- jobs ----------------------------------------------------------------------------------------------------

    def plain(self, name: str, seconds: float) -> list[str]:
        """Return the command of a plain job that records its beginning and its end."""
        file = self.directory / name
        return ["--", "sh", "-c", f"echo begun >> {file}; sleep {seconds}; echo done >> {file}"]

    def elastic(self, name: str, seconds: float) -> list[str]:
        """Return the command of an elastic job that does the same."""
        script = self.directory / "elastic.py"
        if not script.exists():
            script.write_text(textwrap.dedent(ELASTIC))
        return ["--", sys.executable, str(script), name, str(seconds)]

    def said(self, name: str) -> list[str]:
        file = self.directory / name
        return file.read_text().split() if file.exists() else []

    def go(self, name: str) -> None:
        (self.directory / name).touch()

    def clean_up(self) -> None:
        deadline = time.monotonic() + 60
        while (left := processes_with(self.mark)) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        if self.daemon is not None:
            self.daemon.wait(30)


def kill_again_and_again(bench: QueueBench, kills: int, seed: int = 0) -> dict[str, Any]:
    """Kill a queue's daemon at random moments under load; return the outcomes of the jobs.

    Plain jobs of a second and elastic ones of some seconds are submitted as fast as others end. No job may be lost, and
    none may run twice.
    """
    dice = random.Random(seed)
    bench.start("--policy", "fcfs+greedy+elastic")
    names: list[str] = []
    states: dict[str, str] = {}
    for _ in range(kills):
        while len(names) - sum(bench.said(name)[-1:] == ["done"] for name in names) < 6:
            name = f"{'elastic' if len(names) % 6 == 5 else 'plain'}-{len(names)}"
            long = dice.uniform(0.2, 1.5)
            job = bench.elastic(name, 3 * long) if name.startswith("elastic") else bench.plain(name, long)
            bench.submit(name, "-np", "1:2" if name.startswith("elastic") else "1", *job)
            names.append(name)
        time.sleep(dice.uniform(0.0, 0.8))
        bench.kill_daemon()
        time.sleep(dice.choice((0.0, 0.0, 0.3)))
        bench.start_daemon()

    def all_over() -> bool:
        code, out, _ = bench.ask("jobs", "--json")
        if code == 0:
            states.update({job["name"]: job["state"] for job in json.loads(out)})
        return (
            bool(states)
            and set(states) >= set(names)
            and all(state in ("Succeeded", "Failed", "Cancelled") for state in states.values())
        )

    until(all_over, lambda: f"all are over: {states}; {bench.log}", 100)
    wrong = {name: (states[name], bench.said(name)) for name in names if bench.said(name) != ["begun", "done"]}
    return {"kills": kills, "jobs": len(names), "states": sorted(set(states.values())), "wrong": wrong}
