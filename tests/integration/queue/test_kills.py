"""The queue's daemon killed at random moments under load: nothing is lost, nothing runs twice.

A few kills by default; `FARANDOLE_QUEUE_KILLS=100` for more.
"""

from __future__ import annotations

import os

import pytest
from queue_bench import QueueBench, kill_again_and_again

KILLS = int(os.environ.get("FARANDOLE_QUEUE_KILLS", "8"))


@pytest.mark.exact
@pytest.mark.timeout(120 + 10 * KILLS)
def test_no_job_is_lost_or_run_twice_when_daemon_is_killed_at_random(bench: QueueBench) -> None:
    told = kill_again_and_again(bench, KILLS)
    assert told["wrong"] == {} and told["states"] == ["Succeeded"], told
    print(told)
