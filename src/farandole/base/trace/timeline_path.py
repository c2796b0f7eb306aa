"""Where the timeline of a world is kept."""

from __future__ import annotations

import os


def path_of_generation(path: str, generation: int) -> str:
    """Return the file for a world: each after the first has one of its own, as another process may write it.

    Example:
        >>> path_of_generation("out/timeline.json", 3)
        'out/timeline.3.json'
    """
    if generation <= 1:
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}.{generation}{suffix}"
