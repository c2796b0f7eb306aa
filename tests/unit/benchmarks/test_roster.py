"""The benchmark of the roster counts what the roster really sends."""

from __future__ import annotations

import pytest
from benchmarks.roster import measure


@pytest.mark.parametrize("together", [1, 8, 16])
def test_messages_do_not_depend_on_how_many_workers_join_at_once(together: int) -> None:
    first, after_loss = measure(16, together, rounds=1)
    # To each worker the number of those that are still to come, at the beginning of the world; and its world.
    assert (first.received, first.sent, first.answers) == (16, 32, 16)
    # The loss, to all that are left, and their world. As many workers are still to come as before: none.
    assert (after_loss.received, after_loss.sent, after_loss.answers) == (15, 30, 15)


def test_bytes_of_an_announcement_grow_with_the_square_of_the_workers() -> None:
    small, _ = measure(16, 16, rounds=1)
    large, _ = measure(64, 64, rounds=1)
    assert large.sent_bytes > 10 * small.sent_bytes


def test_agents_get_the_table_of_a_world_once_for_eight_workers() -> None:
    first, _ = measure(256, 8, rounds=1)
    assert first.to_agents_bytes < first.sent_bytes / 6
