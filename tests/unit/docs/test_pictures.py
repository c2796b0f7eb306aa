"""The diagrams are what their tables say, and no picture asks another site for anything."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tools.pictures.diagrams import FOLDER, PICTURES, draw


@pytest.mark.parametrize("name", PICTURES)
def test_diagram_is_current(name: str) -> None:
    assert (FOLDER / f"{name}.svg").read_text() == draw(PICTURES[name]), "python -m tools.pictures.diagrams"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.svg")), ids=lambda file: file.name)
def test_picture_stands_alone(file) -> None:
    text = file.read_text()
    ElementTree.fromstring(text)
    assert set(re.findall(r"https?://[^\"' )]+", text)) == {"http://www.w3.org/2000/svg"}
