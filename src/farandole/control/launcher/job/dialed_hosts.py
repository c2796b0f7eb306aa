"""Hosts that dial the launcher, for hints: another program has started them, and no ssh leads to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DialedHosts:
    """What to do about hosts that dial, in the words of the program that runs them; {host} is the name of one."""

    lost: str = "the program that runs {host} may know why it was lost: look at its state and its log there"
    """After the loss of one."""
    install: str = "install it where {host} runs"
    """If a package is missing there."""
