"""Stand-ins for LSF's programs, like those of `fake_slurm`, written from LSF's manual."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from fake_slurm import FakeSlurm, read, write


class FakeLsf(FakeSlurm):
    """A fake LSF, whose state is in a folder."""

    programs = ("bsub", "bjobs", "bmod", "bkill", "bstop", "brequeue", "bresume")
    module = "fake_lsf"

    def script(self, number: int) -> str:
        return (self.folder / f"script.{number}").read_text()


def main(where: str, program: str, words: list[str]) -> int:
    folder = Path(where)
    with (folder / "calls").open("a") as calls:
        print(program, *words, file=calls)
    if (folder / "down").exists():
        print("Failed in an LSF library call: Slave LIM configuration is not ready yet", file=sys.stderr)
        return 255
    if program == "bsub":
        return bsub(folder)
    if program == "bjobs":
        return bjobs(folder)
    job = read(folder, words[-1])
    if program == "bmod":
        job["slots"] = words[1]
    else:
        running = job["state"] == "RUN"
        job["state"] = {
            "bkill": "EXIT",
            "bstop": "USUSP" if running else "PSUSP",
            "brequeue": "PSUSP",
            "bresume": "RUN" if job["state"] == "USUSP" else "PEND",
        }[program]
    write(folder, words[-1], job)
    return 0


def bsub(folder: Path) -> int:
    script = sys.stdin.read()
    lines = [shlex.split(line.removeprefix("#BSUB ")) for line in script.splitlines() if line.startswith("#BSUB ")]
    options = {line[0]: line[1] if len(line) > 1 else "" for line in lines}
    queue = options.get("-q", "normal")
    if queue == "nowhere":
        print("nowhere: No such queue. Job not submitted.", file=sys.stderr)
        return 255
    number = str(len(list((folder / "jobs").iterdir())) + 1)
    (folder / f"script.{number}").write_text(script)
    fields = {"state": "PEND", "reason": "New job is waiting for scheduling;", "slots": options["-n"]}
    write(folder, number, {**fields, "queue": queue, "hosts": "-", "description": options["-Jd"]})
    if (folder / "lost").exists():
        print("Failed in an LSF library call: communication time out", file=sys.stderr)
        return 255
    print(f"Job <{number}> is submitted to {'queue' if '-q' in options else 'default queue'} <{queue}>.")
    return 0


def bjobs(folder: Path) -> int:
    paths = sorted((folder / "jobs").iterdir(), key=lambda path: int(path.name))
    for path in paths:
        job = read(folder, path.name)
        told = (job["state"], "me", job["queue"], job["hosts"], job["description"], job["reason"])
        print(path.name, *told, sep="|")
    if not paths:
        print("No job found", file=sys.stderr)
        return 255
    return 0
