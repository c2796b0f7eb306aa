"""How Sphinx builds the site from these pages (`make docs`). The site asks no other for anything, fonts included."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.search(r"project\(farandole VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())

project = "farandole"
author = "the farandole authors"
project_copyright = f"{author}. Apache License 2.0"
version = release = _VERSION[1] if _VERSION else ""

extensions = ["myst_parser"]
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
# Links to headings, as GitHub makes them.
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
exclude_patterns = ["Thumbs.db"]
# A terminal's output and the like are no language.
highlight_language = "none"
nitpicky = True

html_theme = "furo"
html_title = f"farandole {version}"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#8a3a1c", "color-brand-content": "#8a3a1c"},
    "dark_css_variables": {"color-brand-primary": "#f0a27f", "color-brand-content": "#f0a27f"},
}


def setup(app: Sphinx) -> None:
    """Write the generated pages before the sources are read."""
    command = [sys.executable, ROOT / "tools" / "reference.py"]
    app.connect("builder-inited", lambda _: subprocess.run(command, check=True))
