"""Standard output of services."""

from __future__ import annotations

import subprocess
import sys

_SERVICE = """
import os, sys
from farandole.base.display.standard_output import discard_standard_output
discard_standard_output()
os.write(1, b"a note of a library")
print("a line")
print("a warning", file=sys.stderr)
"""


def test_output_of_libraries_is_discarded_but_not_warnings() -> None:
    done = subprocess.run([sys.executable, "-c", _SERVICE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "a warning\n")
