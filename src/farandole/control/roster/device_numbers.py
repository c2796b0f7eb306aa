"""The number that each worker of an elastic job has on its host, by which its program chooses a device.

A program chooses once. So no two living workers of a host have the same number, whatever local ranks they have in
their worlds.
"""

from __future__ import annotations

from collections.abc import Mapping


class DeviceNumbers:
    """The number that each worker was told first.

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
        """Record the number that a worker is told with its world, unless it has been told one before."""
        self.taken.setdefault(worker, (host, number))

    def leave(self, worker: int) -> None:
        """Let others have the number of a worker whose process has ended."""
        self.taken.pop(worker, None)
