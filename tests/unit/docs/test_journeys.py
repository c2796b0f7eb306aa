"""The lists of functions in the page about the architecture name functions that exist."""

from __future__ import annotations

import re

import pytest
from code_blocks import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "contributing" / "architecture.md").read_text()
GRADIENT, LIMITS = "The way of a gradient", "From `--min-np` to"
SUBMIT, PODS = "From `submit` to a process", "An MPIJob to its pods"
# The package that the names of a section are in.
PACKAGES = {GRADIENT: "", LIMITS: "control", SUBMIT: "control", PODS: "control"}
NAME = re.compile(r"`(_*[A-Za-z]\w*(?:(?:\.|::)\w+)*)`")


def steps(section: str) -> list[str]:
    """Return the steps of a section: the second column of its table, or the items of its numbered list."""
    text = PAGE.split(f"\n## {section}", 1)[1].split("\n## ", 1)[0]
    # Only the descriptions of the last journey name functions, too; the others name data.
    row = r"^\| \d+ \| (.*) \|$" if section == PODS else r"^\| \d+ \| (.*?) \|"
    rows = re.findall(row, text, re.MULTILINE)
    return rows or re.findall(r"^\d+\. (.*?)(?=^\d+\. |^$)", text, re.MULTILINE | re.DOTALL)


def exists(name: str, package: str) -> bool:
    """Return whether a name is that of a module, a function, or a method.

    Args:
        name: with the module before it, or only the class, if a step before has named the module; of native code
            `Class::function`.
        package: the package that the name is in.
    """
    if "::" in name or name.startswith("farandole_"):
        owner, _, function = name.rpartition("::")
        sources = [file.read_text() for file in (ROOT / "native").rglob("*.h")]
        return any(
            re.search(rf"\b{function}\(", text) and f"{owner or 'farandole_engine'} " in text for text in sources
        )
    parts = name.split(".")
    top = ROOT / "src" / "farandole" / package
    for length in range(len(parts), 0, -1):
        file = top.joinpath(*parts[:length]).with_suffix(".py")
        if file.exists():
            return all(re.search(rf"\b(def|class) {part}\b", file.read_text()) for part in parts[length:])
        if top.joinpath(*parts[:length]).is_dir():
            return length == len(parts)
    owner, _, method = name.rpartition(".")
    texts = [text for file in top.rglob("*.py") if f"class {owner}" in (text := file.read_text())]
    return any(f"def {method}(" in text for text in texts)


@pytest.mark.parametrize("section", PACKAGES)
def test_functions_of_each_step_exist(section: str) -> None:
    named = [name for step in steps(section) for name in NAME.findall(step) if re.search(r"\.|::|_submit", name)]
    assert len(named) >= len(steps(section)) > 7
    inside = (PACKAGES[section], "control/kubernetes")
    assert [name for name in named if not any(exists(name, package) for package in inside)] == []


def test_a_name_that_is_nowhere_is_found_out() -> None:
    assert not exists("queue.client.QueueClient.send", "control") and not exists("Engine::mail", "")


def test_a_job_becomes_a_process_in_at_most_ten_steps() -> None:
    assert len(steps(SUBMIT)) <= 10
