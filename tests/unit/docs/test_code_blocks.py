"""Every block of the documentation is of a kind that something checks. Python runs in tests/integration/docs."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from code_blocks import Block, all_blocks

from farandole.control.cli.main import make_parser

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLOCKS = all_blocks()
# Blocks that no tool reads: what a program prints, a drawing; a directive of the site, which its build checks; the
# README's diff, which tests/integration/test_readme.py applies; an ini, for systemd.
TEXT = {"", "text", "diff", "{toctree}", "ini"}
CHECKED = {"python", "pycon", "sh", "yaml", "json", "toml", "docker", "apptainer"}


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def commands() -> list[tuple[Block, list[str]]]:
    """Return the command lines of farandole's own that stand in blocks."""
    found = []
    for block in of("sh", ""):
        for line in block.text.replace("\\\n", " ").splitlines():
            shown = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:srun [^|]*?)?farandole ([a-z-].*)", line.strip())
            if shown and "──" not in line:
                words = shlex.split(re.split(r" [|>&] ?| 2>", shown[1])[0], comments=True)
                found.append((block, words))
    return found


def test_there_are_blocks() -> None:
    assert len(BLOCKS) > 90
    assert len(commands()) > 30


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_block_is_of_a_known_kind(block: Block) -> None:
    assert block.language in TEXT | CHECKED


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("sh"), ids=str)
def test_shell_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of("yaml", "json", "toml"), ids=str)
def test_data_can_be_read(block: Block) -> None:
    read = {"yaml": lambda text: list(yaml.safe_load_all(text)), "json": json.loads, "toml": tomllib.loads}
    assert read[block.language](block.text)


@pytest.mark.parametrize(
    ("block", "words"), commands(), ids=lambda value: str(value) if isinstance(value, Block) else ""
)
def test_the_command_line_takes_what_is_shown(block: Block, words: list[str]) -> None:
    _, unknown = make_parser().parse_known_args(words)
    assert unknown == []


def test_what_does_not_run_says_why() -> None:
    assert [str(block) for block in BLOCKS if block.told.startswith("not run") and len(block.why_not) < 10] == []
