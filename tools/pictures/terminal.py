"""A picture of a terminal, from a real run: its output through a pseudo-terminal, drawn by rich as SVG."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, ROWS = 112, 40
SECONDS = 180

# As rich's own, without its web font: a picture must not ask another site for anything.
_FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def record(command: str, on_line: Callable[[str], None]) -> str:
    """Run a command in a new terminal and return its output, including escape sequences.

    Args:
        on_line: called with each line when it is complete.

    Raises:
        TimeoutError: the command took longer than `SECONDS`.
    """
    primary, secondary = pty.openpty()
    ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    child = subprocess.Popen(shlex.split(command), stdin=secondary, stdout=secondary, stderr=secondary)
    os.close(secondary)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    text = ""
    try:
        while piece := _read(primary):
            *complete, _ = (text.rpartition("\n")[2] + piece).split("\n")
            text += piece
            for line in complete:
                on_line(line)
    finally:
        signal.alarm(0)
        child.kill() if child.poll() is None and sys.exc_info()[0] else child.wait()
        os.close(primary)
    return text


def _read(descriptor: int) -> str:
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:  # Linux reports a closed other side in this way
        return ""


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the command took more than {SECONDS} seconds")


def settled(written: str) -> str:
    """Return the text that remains on the screen, without status lines that are redrawn."""
    return re.sub(r"[^\n]*\r\x1b\[J", "", written.replace("\r\n", "\n"))


def picture(title: str, command: str, written: str) -> str:
    """Return an SVG picture of a terminal with a command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(settled(written).rstrip("\n")))
    return console.export_svg(title=title, theme=MONOKAI, code_format=_FORMAT, unique_id="terminal")
