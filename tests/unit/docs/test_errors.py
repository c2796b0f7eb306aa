"""The page of errors has an entry with cause and remedy for each class of the tree."""

from __future__ import annotations

import re

from code_blocks import DOCS

from farandole import errors


def test_every_error_has_a_cause_and_a_remedy() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    entries = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert entries.keys() & classes == classes - {"FarandoleError"}
    assert [name for name, text in entries.items() if "**Cause.**" not in text or "**Remedy.**" not in text] == []
