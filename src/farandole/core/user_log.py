"""What a worker says to people in its own name, on standard error."""

from __future__ import annotations

import sys


def tell_user(level: str, text: str, rank: int = 0) -> None:
    """Tell the user something, as the native core does.

    Args:
        level: info, warning or error.
        text: one line.
        rank: who says it.
    """
    print(f"farandole [rank {rank}] {level}: {text}", file=sys.stderr, flush=True)
