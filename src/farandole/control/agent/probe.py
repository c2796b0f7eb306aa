"""Checks, before anything starts, whether the workers of this host can be started, and with which versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from farandole.control.agent.command_check import is_python, python_script, unreadable_tuning, what_is_wrong
from farandole.control.agent.protocol import FromAgent, Look, Looked, Task, TaskEnded
from farandole.control.agent.tasks import Tasks

if TYPE_CHECKING:
    import ast

# The packages that decide whether a script can run at all, and whose versions should be the same everywhere.
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet", "numpy", "farandole", "horovod")
_SECONDS = 20.0

# Found, not imported: importing a framework takes seconds.
_FIND = """
import importlib.metadata, importlib.util, json, platform, sys
sys.path.insert(0, sys.argv[1])  # The script's folder, as when it runs.
def version(name):
    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.metadata.version(name)
    except Exception:
        return ""
versions = {name: version(name) for name in sys.argv[2:]}
print(json.dumps({"python": platform.python_version(), "path": sys.executable, "versions": versions}))
"""
# A script that uses one of these may find modules that other processes do not find.
_OWN_IMPORTS = {"importlib", "pkg_resources", "runpy", "site", "zipimport"}
_OWN_PATHS = {"path", "meta_path", "path_hooks", "modules"}


def look(order: Look, tasks: Tasks, say: Callable[[FromAgent], None]) -> None:
    """Send the answer at once or, if a Python interpreter must be queried, when that has ended."""
    environment = {**os.environ, **order.environment}
    wrong = what_is_wrong(order.command, order.directory, environment)
    if wrong is None and order.tuning:
        wrong = unreadable_tuning(order.tuning)
    if wrong is not None:
        say(Looked(order.number, *wrong))
        return
    if not is_python(order.command[0]):
        say(Looked(order.number))
        return
    script = python_script(order.command) or ""
    path = os.path.join(order.directory, script)
    names = imported_by(path) if script else []
    command = (order.command[0], "-c", _FIND, os.path.dirname(path), *names)
    question = Task(order.number, command, order.environment, order.directory, b"", _SECONDS)
    tasks.start(question, lambda answer: say(_judge(order.command[0], script, answer)))


def imported_by(path: str) -> list[str]:
    """Return the modules that a script needs; none if it is not in Python.

    These are the frameworks that it imports anywhere, and all modules that it imports unconditionally at its top level.
    If a script changes the module search path, modules that it may find there are omitted.
    """
    import ast  # It costs 10 ms, for Python scripts only.

    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    anywhere = _imports(ast.walk(tree))
    finds_others = anywhere & _OWN_IMPORTS or any(
        isinstance(node, ast.Attribute)
        and node.attr in _OWN_PATHS
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
        for node in ast.walk(tree)
    )
    others = set() if finds_others else _imports(tree.body) - set(FRAMEWORKS)
    return [*(name for name in FRAMEWORKS if name in anywhere), *sorted(others)]


def _imports(nodes: Iterable[ast.AST]) -> set[str]:
    import ast

    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def _judge(python: str, script: str, answer: TaskEnded) -> Looked:
    import json

    lines = answer.output.decode("utf-8", "replace").strip().splitlines() or [f"exit code {answer.code}"]
    try:
        told = json.loads(lines[-1])
    except ValueError:
        return Looked(answer.number, f"its {python} does not work: {lines[-1]}", f"try it there: {python} -c pass")
    missing = tuple(name for name, version in told["versions"].items() if version is None)
    found = {name: version for name, version in told["versions"].items() if name in FRAMEWORKS and version is not None}
    problem = ""
    if missing:
        what = f"{' and '.join(missing)}, which {script} imports"
        problem = f"its Python, {told['path']} ({told['python']}), has no {what}"
    return Looked(answer.number, problem, "", {"python": told["python"], **found}, missing, told["path"])
