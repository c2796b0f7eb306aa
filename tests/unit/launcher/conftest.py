"""What several tests of the launcher send."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from farandole.control.agent.file_messages import PIECE_BYTES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with one of everything."""
    dice = random.Random(1)
    root = tmp_path / "project"
    (root / "package" / "deep").mkdir(parents=True)
    (root / "outputs").mkdir()
    (root / "train.py").write_text("print('hello')\n" * 100)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "package" / "__init__.py").write_text("")
    (root / "package" / "deep" / "copy.py").write_text("print('hello')\n" * 100)
    (root / "noise.bin").write_bytes(dice.randbytes(3 * PIECE_BYTES + 17))
    (root / "words.txt").write_bytes(b"so compressible " * 50_000)
    (root / "exact.bin").write_bytes(dice.randbytes(PIECE_BYTES))
    (root / "link.py").symlink_to("package/deep/copy.py")
    (root / "package" / "up").symlink_to("../outputs")
    (root / "nowhere").symlink_to("missing")
    Path(os.fsdecode(os.fsencode(root) + b"/not utf-8 \xff")).write_text("x")
    return root
