"""What the launcher sends an agent for the frames of its workers."""

from __future__ import annotations

import random

from farandole.control.agent.protocol import Relayed, RelayedAgain
from farandole.control.launcher.agents.relayed_links import KeptEnd

TABLE = random.Random(1).randbytes(4 * 1024)


def test_common_end_is_found_whatever_its_length() -> None:
    for length in range(2 * 1024, 3 * 1024):
        kept = KeptEnd()
        messages = [kept.message(1, b"the numbers of worker %d; " % worker + TABLE[:length]) for worker in range(3)]
        assert [type(each) for each in messages] == [Relayed, RelayedAgain, RelayedAgain], length


def test_frame_that_is_too_short_to_have_an_end_is_sent_whole() -> None:
    kept = KeptEnd()
    for frame in (b"", b"x" * 4, TABLE[:1000], TABLE[:1000]):
        assert kept.message(3, frame) == Relayed(3, frame)
