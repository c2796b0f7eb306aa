"""The groups of gradients that are reduced together, which the user chooses by `groups`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def grouped(keys: Sequence[Hashable], groups: int | Sequence[Sequence[Hashable]] | None) -> list[list[int]] | None:
    """Return the groups of gradients that are reduced together, as places in `keys`; None if `groups` is None.

    Args:
        keys: the keys of the gradients, or of their variables, in order.
        groups: the number of groups of neighbours, the larger groups first; or the keys that belong together: all
            others are alone, and keys that are not among `keys` are ignored.

    Example:
        >>> grouped("abcde", 2)
        [[0, 1, 2], [3, 4]]
        >>> grouped("abc", [["c", "a"]])
        [[2, 0], [1]]
    """
    if groups is None:
        return None
    if isinstance(groups, int):
        size, larger = divmod(len(keys), groups)
        ends = [size * (index + 1) + min(index + 1, larger) for index in range(groups)]
        return [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False) if begin < end]
    places = {key: place for place, key in enumerate(keys)}
    together = [[places[key] for key in group if key in places] for group in groups]
    taken = {place for group in together for place in group}
    return [group for group in together if group] + [[place] for place in range(len(keys)) if place not in taken]
