"""The user's options for ssh and for copying code to the hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from farandole.base.display.wording import SIZE_UNITS
from farandole.errors import SpecError


@dataclass(frozen=True)
class SshOptions:
    """The user's ssh options, in addition to ssh's own configuration."""

    program: str = "ssh"
    """The program to call. Only one with ssh in its name gets options; others are called as `PROGRAM HOST COMMAND`."""
    port: int | None = None
    identity: str = ""
    options: tuple[str, ...] = ()
    """`NAME=value`, as after ssh's -o."""
    fanout: int = 32
    """Number of hosts that the launcher of a job of fixed size reaches itself if there are more; the agents there start
    the others (see `targets.start_tree`). 0: it reaches all hosts itself."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The options by which a host is reached, as flags of farandole's commands."""
        named = {"--ssh": self.program.removeprefix("ssh"), "--ssh-port": self.port, "--ssh-identity": self.identity}
        pairs = [(name, str(value)) for name, value in named.items() if value]
        pairs += [("--ssh-option", option) for option in self.options]
        return tuple(word for pair in pairs for word in pair)


@dataclass(frozen=True)
class ShipLimit:
    """The limits of what is copied: a larger directory is probably a mistake."""

    size: int = 2_000_000_000
    """Bytes."""
    files: int = 100_000


def read_ship_limit(text: str) -> ShipLimit:
    """Parse `SIZE` or `SIZE,FILES`.

    Raises:
        SpecError: the text is neither.

    Example:
        >>> read_ship_limit("10G,300000")
        ShipLimit(size=10000000000, files=300000)
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)B?(?:,([0-9]+))?", text.strip(), re.IGNORECASE)
    if found is None:
        raise SpecError(f"--ship-limit {text} is not a size", "write 500M, 10G or, with a number of files, 10G,300000")
    size = int(float(found[1]) * SIZE_UNITS[found[2].upper()])
    return ShipLimit(size) if found[3] is None else ShipLimit(size, int(found[3]))
