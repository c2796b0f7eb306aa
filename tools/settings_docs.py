"""Write the docs' tables of settings from the table in the code, between markers; `make fix` does it, and a test checks
it.

A page names the rows, or all:

    <!-- settings: stall_warning_seconds stall_shutdown_seconds -->
    <!-- end of settings -->
"""

from __future__ import annotations

import re
from pathlib import Path

from farandole.base.settings.declaration import Setting, as_text
from farandole.base.settings.table import SETTINGS, descriptions

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MARKED = re.compile(r"(<!-- settings: ([a-z_ ]+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)
_HEAD = "| variable | flag | Horovod's | default | |\n|---|---|---|---|---|\n"


def rendered(page: str) -> str:
    """Return a page with tables of the present settings.

    Raises:
        KeyError: it names a setting that does not exist.
    """
    return _MARKED.sub(lambda found: found[1] + _table(found[2]) + found[3], page)


def _table(asked: str) -> str:
    names = list(SETTINGS) if asked == "all" else asked.split()
    return _HEAD + "".join(_row(SETTINGS[name]) for name in names)


def _row(row: Setting) -> str:
    ours, *horovods = (f"`{variable}`" for variable in row.variables)
    flag = "" if row.flag is None else f"`{row.flag.usage}`"
    cells = (ours, flag, "".join(horovods), _default(row), descriptions()[row.name])
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |")


def _default(row: Setting) -> str:
    if row.unset or row.default in (None, "", b"", ()):
        return row.unset
    return f"`{as_text(row.default)}`"


def main() -> None:
    """Bring all pages up to date."""
    for path in sorted(DOCS.rglob("*.md")):
        page = path.read_text()
        if (now := rendered(page)) != page:
            path.write_text(now)


if __name__ == "__main__":
    main()
