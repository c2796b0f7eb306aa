"""Run the blocks of Python of some pages in this process, one page after the other: run_blocks.py FOLDER PAGE ...

Errors show the page and the line. Files go into FOLDER, which also stands for /shared in the blocks.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from around_blocks import AFTER, BEFORE
from code_blocks import DOCS, Block, blocks


def execute(text: str, where: str, line: int, names: dict[str, Any]) -> None:
    """Run code as if it were at a line of a file."""
    exec(compile("\n" * (line - 1) + text, where, "exec"), names)


def code(block: Block, folder: str) -> str:
    """Return the code of a block that should run: for a session with Python's prompt, the input."""
    text = block.text
    if block.language == "pycon":
        text = "".join(
            line[4:] if line.startswith((">>> ", "... ")) else "\n" for line in text.splitlines(keepends=True)
        )
    return within(text, folder)


def within(text: str, folder: str) -> str:
    """Return code with paths in /shared replaced by paths in a folder."""
    return text.replace('"/shared', f'"{folder}')


def run_page(page: str, folder: str) -> None:
    """Run the blocks of a page in their order and with the same names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    execute(within(BEFORE.get(page, ""), folder), f"before {page}", 1, names)
    python = [block for block in blocks(DOCS / page) if block.language in {"python", "pycon"}]
    for i, block in enumerate(python):
        script = re.match(r"script (\S+)", block.told)
        if script and os.environ.get("FARANDOLE_RANK") == "0":
            with open(script[1], "w") as file:
                file.write(block.text)
        if not block.why_not:
            print(f"{block}", file=sys.stderr, flush=True)
            execute(code(block, folder), str(DOCS / page), block.line, names)
        execute(AFTER.get((page, i), ""), f"after block {i} of {page}", 1, names)


def main() -> None:
    """Run the pages that the command line names."""
    folder, *asked = sys.argv[1:]
    os.chdir(folder)
    for page in asked:
        run_page(page, folder)


if __name__ == "__main__":
    main()
