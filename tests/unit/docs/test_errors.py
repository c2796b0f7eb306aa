"""The page of errors has an entry with cause and remedy for each class of the tree."""

from __future__ import annotations

import ast
import re

import pytest
from code_blocks import DOCS
from tools import messages

from farandole import errors

PACKAGE = DOCS.parent / "src" / "farandole"
# Errors of which a user sees no more than what another one makes of them, and kinds of one that has an entry.
NO_ENTRY = {
    "cluster and workload of a simulation": {"ClusterError", "TraceError", "UnknownPolicyError"},
    "said by an error of the launcher": {"HostsMissing", "HostsRefused", "NothingLeft", "NotTakenOver"},
}


def entries() -> dict[str, str]:
    page = (DOCS / "reference" / "errors.md").read_text()
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))


def own_errors() -> set[str]:
    """Return the classes that sources derive from the roots of our errors, directly or not."""
    bases: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))
    known = {"FarandoleError", "LaunchError"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return known


@pytest.fixture(scope="module")
def said() -> list[messages.Message]:
    return list(messages.messages(PACKAGE))


def test_every_message_is_of_a_class_with_an_entry(said) -> None:
    raised = {message.error for message in said}
    assert raised & own_errors() - entries().keys() <= set().union(*NO_ENTRY.values())


def test_the_page_of_messages_has_them_all(said) -> None:
    page = messages.page(said, list(entries()))
    shown = [message for message in said if message.error in entries()]
    assert len(shown) > 400
    assert all(f"{message.room}: {message.text}" in page for message in shown)


def test_every_error_has_a_cause_and_a_remedy() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert entries().keys() & classes == classes - {"FarandoleError", "WithHint"}
    assert [name for name, text in entries().items() if "**Cause.**" not in text or "**Remedy.**" not in text] == []
