"""The numbers on their hosts by which programs choose their devices, where workers come and go.

A program chooses once, so no two living workers of a host have the same, whatever local ranks their worlds give them.
"""

from __future__ import annotations

from collections.abc import Mapping


class DeviceNumbers:
    """Who has been told which number first.

    Attributes:
        taken: by living worker, its host and its number there.
    """

    def __init__(self, taken: Mapping[int, tuple[str, int]] = {}) -> None:
        """Begin with what is known already."""
        self.taken = dict(taken)

    def take(self, worker: int, host: str) -> int:
        """Give a worker the first number that is free on its host."""
        others = {number for other, (where, number) in self.taken.items() if where == host and other != worker}
        number = next(number for number in range(len(others) + 1) if number not in others)
        self.taken[worker] = (host, number)
        return number

    def told(self, worker: int, host: str, number: int) -> None:
        """Take note of the number that a worker is told with its world, unless it has been told one before."""
        self.taken.setdefault(worker, (host, number))

    def leave(self, worker: int) -> None:
        """Let others have the number of a worker whose process has ended."""
        self.taken.pop(worker, None)
