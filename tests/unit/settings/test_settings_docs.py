"""Tables of settings in the documentation, as they are written from the table."""

from __future__ import annotations

import pytest
from tools import settings_docs

PAGE = "before\n<!-- settings: {} -->\n{}<!-- end of settings -->\nafter\n"


def test_rows_are_written_between_the_markers() -> None:
    rows = settings_docs.rendered(PAGE.format("stall_shutdown_seconds chunk_bytes", "| old |\n"))
    assert rows.splitlines()[:2] == ["before", "<!-- settings: stall_shutdown_seconds chunk_bytes -->"]
    head, line, first, second = rows.splitlines()[2:6]
    assert head == "| variable | flag | Horovod's | default | |" and line == "|---|---|---|---|---|"
    assert first.startswith(
        "| `FARANDOLE_STALL_SHUTDOWN_SECONDS` | `--stall-shutdown S` | `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS` | `0` | "
    )
    assert second.startswith("| `FARANDOLE_CHUNK_BYTES` | | | 1 MiB | ")
    assert rows.endswith("<!-- end of settings -->\nafter\n")
    assert settings_docs.rendered(rows) == rows


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(KeyError, match="no_such_setting"):
        settings_docs.rendered(PAGE.format("no_such_setting", ""))
