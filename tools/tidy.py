"""Run clang-tidy on the native files that a branch changes or, with --all, on all.

A file is changed if it differs from the point where the branch left origin/main or, on main itself or without a remote,
from the last commit but one; committed or not. A changed header stands for all source files of its folder.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    """Run git in the project, and return its output; empty if it fails, as it does outside a clone."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_files() -> set[Path]:
    """Return the files that differ from the base, or are not tracked by git."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    if base in ("", head):
        base = git("rev-parse", "HEAD~1") or head
    names = git("diff", "--name-only", base) + "\n" + git("ls-files", "--others", "--exclude-standard")
    return {ROOT / name for name in names.split()}


def compiled_files(build: Path) -> set[Path]:
    """Return the project's files that the build compiles."""
    commands = json.loads((build / "compile_commands.json").read_text())
    files = {Path(command["file"]).resolve() for command in commands}
    return {file for file in files if file.is_relative_to(ROOT) and "third_party" not in file.parts}


def select(compiled: set[Path], changed: set[Path]) -> set[Path]:
    """Return the compiled files that are changed, or are in the folder of a changed header."""
    folders = {file.parent for file in changed if file.suffix == ".h"}
    return {file for file in compiled if file in changed or file.parent in folders}


def tidy(build: Path, file: Path) -> tuple[bool, str]:
    """Check one file; return whether it passed, and clang-tidy's output."""
    command = ["clang-tidy", "--quiet", "-p", str(build), str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # stderr only counts the warnings that were suppressed, unless clang-tidy itself failed.
    return done.returncode == 0, done.stdout if done.stdout or done.returncode == 0 else done.stderr


def main() -> int:
    """Check the selected files in parallel; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="folder with compile_commands.json")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="check every file")
    arguments = parser.parse_args()
    build = arguments.build.resolve()

    compiled = compiled_files(build)
    files = sorted(compiled if arguments.all else select(compiled, changed_files()))
    print(f"clang-tidy: {len(files)} of {len(compiled)} files", flush=True)
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for passed, said in pool.map(lambda file: tidy(build, file), files):
            if not passed:
                failed += 1
                print(said, flush=True)
    if failed:
        print(f"error: clang-tidy objects to {failed} files", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
