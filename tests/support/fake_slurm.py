"""Stand-ins for Slurm's programs on the PATH: they keep jobs in a folder, and tests change the jobs' states.

Each job is a file of its fields, as squeue prints them. `calls` records the programs' arguments.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROGRAM = """\
#!{python}
import sys
sys.path.insert(0, {support!r})
from {module} import main
sys.exit(main({folder!r}, {name!r}, sys.argv[1:]))
"""


class FakeSlurm:
    """A fake Slurm, whose state is in a folder.

    Args:
        folder: the folder for programs and jobs.
    """

    programs: tuple[str, ...] = ("sbatch", "squeue", "scontrol", "scancel")
    module = "fake_slurm"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "jobs").mkdir()
        for name in self.programs:
            path = folder / "bin" / name
            support = str(Path(__file__).resolve().parent)
            path.write_text(
                PROGRAM.format(
                    python=sys.executable, support=support, module=self.module, folder=str(folder), name=name
                )
            )
            path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        written = self.folder / "calls"
        return written.read_text().splitlines() if written.exists() else []

    def set(self, number: int, **fields: str) -> None:
        """Change fields of a job."""
        write(self.folder, str(number), {**read(self.folder, str(number)), **fields})

    def be(self, how: str, is_so: bool = True) -> None:
        """Switch a fault on or off: `down`, answers to submissions that are `lost` or `unclear`, or `hidden` jobs."""
        (self.folder / how).touch() if is_so else (self.folder / how).unlink()

    def forget(self, number: int) -> None:
        (self.folder / "jobs" / str(number)).unlink()

    def key(self, number: int) -> str:
        """Return the key of a job's submission."""
        return read(self.folder, str(number))["comment"].partition(":")[2]

    def keep_script(self, number: int) -> int:
        """Store a job's script, as Slurm does; return the job's number."""
        path = self.folder / f"script.{number}"
        path.write_text(self.script(number))
        self.set(number, script=str(path))
        return number

    def script(self, number: int) -> str:
        return Path(read(self.folder, str(number))["script"]).read_text()


def read(folder: Path, number: str) -> dict[str, str]:
    lines = (folder / "jobs" / number).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def write(folder: Path, number: str, fields: dict[str, str]) -> None:
    (folder / "jobs" / number).write_text("".join(f"{name}={value}\n" for name, value in fields.items()))


def main(where: str, program: str, words: list[str]) -> int:
    folder = Path(where)
    with (folder / "calls").open("a") as calls:
        print(program, *words, file=calls)
    if (folder / "down").exists():
        reason = (folder / "down").read_text() or "Unable to contact slurm controller (connect failure)"
        print(f"{program}: error: {reason}", file=sys.stderr)
        return 1
    return {"sbatch": sbatch, "squeue": squeue, "scontrol": scontrol, "scancel": scancel}[program](folder, words)


def sbatch(folder: Path, words: list[str]) -> int:
    script = Path(words[-1]).read_text()
    options = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    )
    if options.get("partition") == "nowhere":
        print("sbatch: error: invalid partition specified: nowhere", file=sys.stderr)
        return 1
    number = str(len(list((folder / "jobs").iterdir())) + 1)
    fields = {"name": options["job-name"], "state": "PENDING", "reason": "Resources", "cores": options["ntasks"]}
    fields |= {"partition": options.get("partition", "all"), "nodes": "", "comment": options["comment"]}
    write(folder, number, {**fields, "script": words[-1]})
    if (folder / "lost").exists():
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print("sbatch: a word of the site" if (folder / "unclear").exists() else f"{number};cluster")
    return 0


def squeue(folder: Path, words: list[str]) -> int:
    for path in sorted((folder / "jobs").iterdir(), key=lambda path: int(path.name)):
        job = read(folder, path.name)
        if (folder / "hidden").exists():
            continue
        told = (job["name"], job["state"], job["reason"], "me", job["partition"], job["cores"], job["nodes"])
        print(path.name, *told, job["comment"], sep="|")
    return 0


def scontrol(folder: Path, words: list[str]) -> int:
    verb, number = words[0], words[1].rpartition("=")[2]
    job = read(folder, number)
    if verb == "update":
        job["cores"] = words[2].rpartition("=")[2]
    elif verb in ("hold", "requeuehold"):
        job |= {"state": "PENDING", "reason": "JobHeldUser"}
    elif verb == "release":
        job |= {"reason": "None"}
    write(folder, number, job)
    return 0


def scancel(folder: Path, words: list[str]) -> int:
    write(folder, words[-1], {**read(folder, words[-1]), "state": "CANCELLED"})
    return 0


def path_with(slurm: FakeSlurm) -> str:
    return f"{slurm.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
