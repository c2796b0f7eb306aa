"""The code blocks of the documentation, and how they are tested.

A comment before a block describes an exception:

    <!-- docs test: not run: REASON -->    it is compiled only <!-- docs test: script NAME -->        it is saved as
    NAME for the command below; it also runs like other blocks <!-- docs test: run -->                the commands are
    run, in the folder of the scripts

Every other block of Python runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Block:
    """A fenced or indented block.

    Attributes:
        page: the path relative to `docs`.
        line: the number of its first line of code, from 1.
        language: the language after the fence; empty for an indented block.
        told: the text of the comment before it, or "".
    """

    page: str
    line: int
    language: str
    text: str
    told: str

    @property
    def why_not(self) -> str:
        """The reason why the block does not run; empty if it does."""
        return self.told.removeprefix("not run: ") if self.told.startswith("not run: ") else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that are written by hand; generated ones are tested at their sources."""
    return [*(page for page in sorted(DOCS.rglob("*.md")) if "generated" not in page.parts), ROOT / "README.md"]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page in their order."""
    found, told = [], ""
    name = str(page.relative_to(DOCS)) if page.is_relative_to(DOCS) else page.name
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "html_block":
            comment = re.fullmatch(r"<!-- docs test: (.*?) -->\s*", token.content, re.DOTALL)
            told = comment[1] if comment else ""
        elif token.type in {"fence", "code_block"}:
            assert token.map
            first = token.map[0] + (2 if token.type == "fence" else 1)
            found.append(Block(name, first, token.info.strip(), token.content, told))
            told = ""
        elif not token.hidden:
            told = ""
    return found


def all_blocks() -> list[Block]:
    """Return the blocks of all pages."""
    return [block for page in pages() for block in blocks(page)]
