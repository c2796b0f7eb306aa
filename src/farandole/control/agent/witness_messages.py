"""The messages about witnesses: agents that others ask whether they hear the launcher (see `quorum`)."""

from __future__ import annotations

import msgspec


class BeWitness(msgspec.Struct, frozen=True, tag="be-witness"):
    """Tell agents that ask for it whether the launcher is silent (see `quorum`). Answered by `WitnessReady`.

    It replaces an earlier order, whose questions are not answered any more.
    """

    number: int
    key: bytes
    identity: bytes
    """What questions to this witness contain."""
    silence: float
    """Seconds after which it says that the launcher is silent, and confirms no heartbeat for a while."""


class WitnessPlace(msgspec.Struct, frozen=True):
    """Where a witness answers."""

    identity: bytes
    addresses: tuple[str, ...]
    """All addresses of its host."""
    port: int


class AskWitnesses(msgspec.Struct, frozen=True, tag="ask-witnesses"):
    """When the launcher falls silent, ask the witnesses, and keep the workers while most of them do not hear it.

    They are asked once now. Answered by `WitnessesTried`. It replaces an earlier order.
    """

    number: int
    key: bytes
    witnesses: tuple[WitnessPlace, ...]
    """Some may be missing: those whose places are not known."""
    most: int
    """How many witnesses are a majority."""
    seconds: float
    """Seconds of silence after which the workers end in any case."""


class WitnessReady(msgspec.Struct, frozen=True, tag="witness-ready"):
    """The agent answers other agents."""

    number: int
    port: int
    """The UDP port; 0 if it cannot listen."""


class WitnessesTried(msgspec.Struct, frozen=True, tag="witnesses-tried"):
    """The agent has asked the witnesses for the first time."""

    number: int
    answered: tuple[bytes, ...]
    """The identities of those that have answered."""
