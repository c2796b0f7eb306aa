"""Arguments, variables and paths that are not UTF-8, through the real launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("flags", [(), ("--min-np", "1")], ids=["fixed", "elastic"])
def test_text_reaches_workers_unchanged_in_a_locale_of_ascii(tmp_path: Path, flags: tuple[str, ...]) -> None:
    here = tmp_path / "café"
    here.mkdir()
    script = here / "trainé.py"
    script.write_text("import os, sys\nos.write(1, b' '.join(map(os.fsencode, (sys.argv[1], os.environ['WORD']))))\n")
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", "1", *flags, sys.executable, script.name, "naïve"],
        cwd=here,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "WORD": "ü"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == "[0]<stdout>:naïve ü\n"


@pytest.mark.parametrize("flags", [(), ("--min-np", "1")], ids=["fixed", "elastic"])
def test_text_that_is_not_utf_8_reaches_workers_unchanged_and_is_shown_escaped(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    here = os.path.join(os.fsencode(tmp_path), b"fol\xe9")
    os.mkdir(here)
    script = os.path.join(here, b"scr\xe9pt.py")
    with open(script, "w") as file:
        file.write(
            "import os, sys\n"
            "said = sys.argv[1], os.getcwd(), os.environ['WORD'], os.environ['EXPORTED']\n"
            "os.write(1, b' '.join(map(os.fsencode, said)) + b'\\n')\n"
            "raise ValueError(os.environ['WORD'] + '\\ud800')\n"
        )
    command = [sys.executable, "-m", "farandole", "run", "-np", "1", *flags, "--output-dir", b"l\xe9gs", "-x"]
    done = subprocess.run(
        [*command, b"EXPORTED=ex\xe9", sys.executable, script, b"arg\xe9"],
        cwd=here,
        env={**os.environb, b"WORD": b"caf\xe9"},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    (log,) = Path(os.fsdecode(os.path.join(here, b"l\xe9gs"))).glob("*/stdout")
    assert log.read_bytes() == b"arg\xe9 " + here + b" caf\xe9 ex\xe9\n"
    assert b"\xe9" not in done.stderr
    assert rb"scr\udce9pt.py" in done.stderr  # Python's own way, in the worker's traceback
