"""Record the files for which a long check has passed, so that it need not run again for the same files.

    python tools/verified.py check sanitizers                       # exit code 0: nothing has changed since it passed
    python tools/verified.py record sanitizers -- tools/sanitize    # run it; write the record if it passes

The records are lines of `tests/verified.txt`, which is under version control: the name of a check, and one digest of
everything that its result depends on: the content of folders and files, the compiler, the settings. A record is valid
only if the digest is the same now: if any byte of a file differs, or a file was added or removed, the check must run.
Git merges this file by keeping the lines of both sides (see `.gitattributes`), so it never conflicts. If both sides
changed the inputs of a check, neither line is valid for the result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORDS = "tests/verified.txt"

State = dict[str, str]
"""Everything that a result depends on: names, each with the digest of its content or its value."""


class Check(NamedTuple):
    """A long check, and everything that its result depends on."""

    inputs: tuple[str, ...]
    """Files, and folders with all their contents except generated files."""
    settings: Mapping[str, str]
    """Environment variables, and their values where they are not set."""
    build: str | None = None
    """The folder where the compiled program is built; None: the check needs no compiler."""
    without: tuple[str, ...] = ()
    """Folders of the inputs that the result does not depend on."""


NATIVE = (
    "CMakeLists.txt",
    "CMakePresets.json",
    "cmake",
    "native",
    "tests/gpu_fake/CMakeLists.txt",
    "tests/gpu_fake/cuda",
    "tests/gpu_fake/nccl",
    "tests/native",
    "third_party/googletest",
)
# Parts of `src/farandole` that the models do not import. A part that is not named here counts, so a new one does, too.
ABOVE_THE_MODELS = (
    *(
        "base/display/standard_output.py",
        "base/display/tables.py",
        "base/self_test",
        "base/tensorflow1",
        "base/trace",
        "compat",
        "jax",
        "keras",
        "kubeflow",
        "lightning",
        "mxnet",
    ),
    *("numpy", "observe", "parquet", "spark", "tensorflow", "torch", "worker/core/lib", "worker/observe"),
    *(
        f"control/{room}"
        for room in (
            *("agent", "batch_systems", "cli", "dashboard", "jobs", "kubernetes", "lsf", "queue"),
            *("rewriting", "scheduler", "simulator", "slurm"),
        )
    ),
    *(
        f"control/launcher/{room}"
        for room in (
            *(
                "agents",
                "arguments.py",
                "background.py",
                "call.py",
                "configuration",
                "daemon",
                "discovery",
                "doctor",
                "failure",
            ),
            *("function.py", "host_setup", "job", "output", "plan", "ship", "start", "supervise", "targets"),
        )
    ),
)

# A check that takes long: one row here, and a line in .ci/run.
CHECKS = {
    "sanitizers": Check((*NATIVE, "tools/sanitize"), {"SANITIZED_SEEDS": "100"}, "build/asan"),
    "simulation": Check(NATIVE, {"FARANDOLE_SIMULATION_SEEDS": "2000"}, "build/release"),
    "tidy": Check(
        (*NATIVE, ".clang-tidy", "benchmarks/native", "constraints.txt", "tools/tidy.py"), {}, "build/release"
    ),
    "wheels": Check((*NATIVE, "constraints.txt", "tools/wheels.py"), {}),
    "models": Check(
        (
            "constraints.txt",
            "src/farandole",
            "tests/support/played_engine.py",
            "tests/support/played_jobs.py",
            "tests/support/played_trainings.py",
            "tests/unit/elastic",
            "tests/unit/roster",
        ),
        {"FARANDOLE_EXPLORE": "all"},
        without=tuple(f"src/farandole/{room}" for room in ABOVE_THE_MODELS),
    ),
    # Whether the front ends fit other versions of their frameworks; that they fit the rest of farandole, `make test`
    # shows with the newest ones. So what is below them does not count.
    "frameworks": Check(
        (
            "constraints.txt",
            "native/plugins",
            "src/farandole/compat/tensorflow",
            "src/farandole/keras",
            "src/farandole/mxnet",
            "src/farandole/tensorflow",
            "src/farandole/base/tensorflow1",
            "tests/compat/test_mxnet.py",
            "tests/integration/keras",
            "tests/integration/mxnet",
            "tests/integration/tensorflow",
            "tests/unit/mxnet",
            "tools/frameworks.py",
        ),
        {},
        without=("native/plugins/jax",),
    ),
    # Whether libraries that train on PyTorch do so with farandole.
    "ecosystem": Check(
        (
            "docs/how-to/accelerate.md",
            "docs/how-to/images.md",
            "docs/how-to/language_model.md",
            "docs/how-to/lightning.md",
            "docs/how-to/recipes.md",
            "docs/how-to/trackers.md",
            "docs/how-to/transformers.md",
            "src/farandole/autoload.py",
            "src/farandole/lightning",
            "src/farandole/observe",
            "src/farandole/torch",
            "tests/ecosystem",
            "tools/frameworks.py",
        ),
        {},
    ),
    # Whether jobs run on a cluster of Ray.
    "ray": Check(
        (
            "docs/how-to/ray.md",
            "src/farandole/control/agent/dial.py",
            "src/farandole/control/agent/dialer_process.py",
            "src/farandole/control/launcher/agents",
            "src/farandole/control/launcher/start",
            "src/farandole/control/ray_jobs",
            "src/farandole/ray",
            "tests/ray",
            "tools/frameworks.py",
        ),
        {},
    ),
    # Whether PyTorch's tensors of CUDA take the way that the device of the fake GPU takes in `make test`, and XLA calls
    # the handler of its platform CUDA.
    "cuda-fake": Check(
        (
            "native/backend/nccl",
            "native/device",
            "native/plugins/jax",
            "src/farandole/jax",
            "src/farandole/torch",
            "src/farandole/worker/gradients",
            "tests/cuda_fake",
            "tests/gpu_fake",
            "tests/support/cuda_on_fake_gpu.py",
        ),
        {},
    ),
    # Whether jobs run in tasks of Spark.
    "spark": Check(
        (
            "docs/how-to/spark.md",
            "src/farandole/compat/spark",
            "src/farandole/control/agent/dial.py",
            "src/farandole/control/agent/dialer_process.py",
            "src/farandole/control/launcher/agents",
            "src/farandole/control/launcher/start",
            "src/farandole/lightning",
            "src/farandole/parquet",
            "src/farandole/spark",
            "tests/spark",
            "tests/support/spark_jobs.py",
            "tests/support/spark_sessions.py",
        ),
        {},
    ),
    # Whether rows of Parquet files arrive, and the blocks of its page run.
    "parquet": Check(
        (
            "docs/how-to/parquet.md",
            "src/farandole/parquet",
            "src/farandole/torch/elastic",
            "src/farandole/worker/elastic/ledger.py",
            "src/farandole/worker/elastic/ranges.py",
            "tests/parquet",
            "tests/support/parquet_files.py",
        ),
        {},
    ),
}

GENERATED = "__pycache__"

# The exit code of a command that could run only a part of a check: that part has passed, and nothing is recorded.
IN_PART = 75


# --- what a result depends on ---------------------------------------------------------------------------------------


def digest_files(root: Path, inputs: Sequence[str], without: Sequence[str] = ()) -> State:
    """Return a digest, of the names and contents of files, for each folder with inputs.

    A file that is itself an input has its own row. An input that does not exist is an error in the table.
    """
    digests: dict[str, hashlib._Hash] = {}
    for name in inputs:
        path = root / name
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            if file.parent.name != GENERATED and not any(file.is_relative_to(root / folder) for folder in without):
                row = name if file == path else file.parent.relative_to(root).as_posix()
                # Two digests of a fixed length: no two lists of names and contents look the same.
                digest = hashlib.sha256(file.name.encode()).digest() + hashlib.sha256(file.read_bytes()).digest()
                digests.setdefault(row, hashlib.sha256()).update(digest)
    return {row: digest.hexdigest() for row, digest in digests.items()}


def read_cache(build: Path) -> dict[str, str]:
    """Return CMake's cache of a build folder; empty if there is none."""
    try:
        lines = (build / "CMakeCache.txt").read_text().splitlines()
    except FileNotFoundError:
        return {}
    rows = (line.partition("=") for line in lines if not line.startswith(("#", "//")))
    return {key.partition(":")[0]: value for key, _, value in rows if value}


def describe_compiler(cache: Mapping[str, str], environment: Mapping[str, str]) -> State:
    """Return the compiler's version, its options, and the machine that it compiles for.

    They are those of a build folder, or those that CMake would choose for a new one. Options may contain paths, so they
    are represented by a digest.
    """
    command = shlex.split(environment.get("CXX", "")) or ["c++"]
    options = [*command[1:], *shlex.split(environment.get("CXXFLAGS", ""))]
    linker = environment.get("LDFLAGS", "")
    if cache:
        command = [cache["CMAKE_CXX_COMPILER"]]
        options = shlex.split(cache.get("CMAKE_CXX_FLAGS", ""))
        linker = cache.get("CMAKE_EXE_LINKER_FLAGS", "")
    said = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "compiler": said.splitlines()[0],
        "compiler options": hashlib.sha256(shlex.join([*options, linker.strip()]).encode()).hexdigest(),
        "machine": " ".join([platform.machine(), *platform.libc_ver()]),
    }


def look(check: Check, root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> State:
    """Return the present state of everything that the check's result depends on."""
    state = digest_files(root, check.inputs, check.without)
    state |= {name: environment.get(name, default) for name, default in check.settings.items()}
    if check.build is None:
        state["Python"] = ".".join(platform.python_version_tuple()[:2])
    else:
        state |= describe_compiler(read_cache(root / check.build), environment)
    return state


def compare(earlier: State, now: State) -> list[str]:
    """Return descriptions of the differences between two states."""
    differences = []
    for row in sorted({*earlier, *now}):
        before, after = earlier.get(row), now.get(row)
        if before is None:
            differences.append(f"{row} is new")
        elif after is None:
            differences.append(f"{row} is gone")
        elif before != after:
            is_digest = len(after) == 64
            differences.append(f"{row} has changed" if is_digest else f"{row} was {before!r} and is {after!r}")
    return differences


# --- records ----------------------------------------------------------------------------------------------------------


def digest(state: State) -> str:
    """Return one digest of all that a result depends on."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read(root: Path = ROOT) -> list[tuple[str, str]]:
    """Return the records: pairs of a check's name and the digest for which it has passed."""
    file = root / RECORDS
    lines = file.read_text().splitlines() if file.exists() else []
    return [(name, found) for name, _, found in (line.partition(" ") for line in lines)]


def write(name: str, state: State, root: Path = ROOT) -> None:
    """Record that a check has passed, instead of its earlier records."""
    records = [(other, found) for other, found in read(root) if other != name]
    records.append((name, digest(state)))
    file = root / RECORDS
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{name} {found}\n" for name, found in sorted(records)))


def verdict(name: str, now: State, root: Path = ROOT) -> tuple[bool, str]:
    """Return whether a record of the check is valid, and a line with the reason."""
    passed = [found for other, found in read(root) if other == name]
    if digest(now) in passed:
        return True, f"{name}: skipped; it has passed for these files, this compiler and these settings"
    why = "its files, the compiler or a setting have changed since it passed" if passed else "it has no record"
    return False, f"{name}: to be run; {why}"


def record(name: str, command: Sequence[str], root: Path = ROOT) -> int:
    """Run a check, and write its record if it passes and no input has changed meanwhile; return its exit code."""
    check = CHECKS[name]
    before = look(check, root)
    code = subprocess.run(command, cwd=root, check=False).returncode
    after = look(check, root)
    if code == IN_PART:
        print(f"{name}: passed, but not recorded: a part of it could not be run here", file=sys.stderr)
        return 0
    if code:
        return code
    if changed := compare(before, after):
        print(f"{name}: passed, but not recorded: meanwhile {', '.join(changed)}", file=sys.stderr)
        return 0
    write(name, after, root)
    print(f"{name}: passed, and recorded in {RECORDS}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or record; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("check", "record"))
    parser.add_argument("name", choices=sorted(CHECKS))
    parser.add_argument("command", nargs="*", help="what to run, after --")
    given = parser.parse_args(arguments)
    if given.action == "record":
        return record(given.name, given.command)
    holds, line = verdict(given.name, look(CHECKS[given.name]))
    print(line)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
