"""Looks on one host, before anything starts, whether its workers can: `python -m farandole.agent.probe`.

Reads a JSON object from standard input: `command`, `directory`; writes one: `problem` and `hint`, empty when all is
well, and `versions` of what the script imports. The environment is the workers'.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence

from farandole.agent.command import is_python, python_script, what_is_wrong

# What decides whether a script can run at all, and whose versions should be the same everywhere.
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "numpy", "farandole", "horovod")
_SECONDS = 20.0

# Found, not imported: importing a framework takes seconds.
_LOOK = """
import importlib.metadata, importlib.util, json, platform, sys
def version(name):
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({"python": platform.python_version(), **{name: version(name) for name in sys.argv[1:]}}))
"""


def main() -> None:
    """Answer one question."""
    question = json.load(sys.stdin)
    json.dump(_answer(tuple(question["command"]), question["directory"]), sys.stdout)


def _answer(command: Sequence[str], directory: str) -> dict[str, object]:
    wrong = what_is_wrong(command, directory, os.environ)
    if wrong is not None:
        return {"problem": wrong[0], "hint": wrong[1], "versions": {}}
    if not is_python(command[0]):
        return {"problem": "", "hint": "", "versions": {}}
    script = python_script(command)
    names = () if script is None else imported_by(os.path.join(directory, script))
    return _versions(command[0], names, directory)


def imported_by(path: str) -> list[str]:
    """Return which frameworks a script imports, at whatever place in it; none when it is not Python."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return [name for name in FRAMEWORKS if name in names]


def _versions(python: str, names: Sequence[str], directory: str) -> dict[str, object]:
    looked = subprocess.run(
        [python, "-c", _LOOK, *names],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if looked.returncode:
        last = looked.stderr.strip().splitlines()[-1:] or [f"exit code {looked.returncode}"]
        return {"problem": f"its {python} does not work: {last[0]}", "hint": "try it there", "versions": {}}
    versions = json.loads(looked.stdout)
    missing = [name for name in names if versions[name] is None]
    if missing:
        what = " and ".join(missing)
        return {
            "problem": f"its {python} cannot import {what}, as the script does",
            "hint": f"install {what} there",
            "versions": versions,
        }
    return {"problem": "", "hint": "", "versions": versions}


if __name__ == "__main__":
    main()
