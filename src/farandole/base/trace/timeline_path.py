"""The path of a world's timeline."""

from __future__ import annotations

import os


def path_of_generation(path: str, generation: int) -> str:
    """Return the file of a world's timeline. Later worlds have separate files, as another process may write them.

    Example:
        >>> path_of_generation("out/timeline.json", 3)
        'out/timeline.3.json'
    """
    if generation <= 1:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{generation}{suffix}"
