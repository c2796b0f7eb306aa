"""Looks, before anything starts, whether the workers of this host can be started, and with which versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from farandole.agent.command_check import is_python, python_script, what_is_wrong
from farandole.agent.protocol import FromAgent, Look, Looked, Task, TaskEnded
from farandole.agent.tasks import Tasks

# What decides whether a script can run at all, and whose versions should be the same everywhere.
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "numpy", "farandole", "horovod")
_SECONDS = 20.0

# Found, not imported: importing a framework takes seconds.
_FIND = """
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


def look(order: Look, tasks: Tasks, say: Callable[[FromAgent], None]) -> None:
    """Answer at once, or, when a Python must be asked, as soon as that has answered."""
    environment = {**os.environ, **order.environment}
    wrong = what_is_wrong(order.command, order.directory, environment)
    if wrong is not None:
        say(Looked(order.number, *wrong))
        return
    if not is_python(order.command[0]):
        say(Looked(order.number))
        return
    script = python_script(order.command)
    names = () if script is None else imported_by(os.path.join(order.directory, script))
    command = (order.command[0], "-c", _FIND, *names)
    question = Task(order.number, command, order.environment, order.directory, b"", _SECONDS)
    tasks.start(question, lambda answer: say(_judge(order.command[0], names, answer)))


def imported_by(path: str) -> list[str]:
    """Return which frameworks a script imports, at whatever place in it; none when it is not Python."""
    import ast  # A hundredth of a second, for Python scripts only.

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


def _judge(python: str, names: Sequence[str], answer: TaskEnded) -> Looked:
    import json

    lines = answer.output.decode("utf-8", "replace").strip().splitlines() or [f"exit code {answer.code}"]
    try:
        versions = json.loads(lines[-1])
    except ValueError:
        return Looked(answer.number, f"its {python} does not work: {lines[-1]}", f"try it there: {python} -c pass")
    missing = [name for name in names if versions[name] is None]
    found = {name: version for name, version in versions.items() if version is not None}
    if not missing:
        return Looked(answer.number, versions=found)
    what = " and ".join(missing)
    return Looked(
        answer.number, f"its {python} cannot import {what}, as the script does", f"install {what} there", found
    )
