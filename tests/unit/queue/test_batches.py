"""The batch that a policy has chosen for a job's slots reaches the job, when it has these slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from queue_world import FakeDaemon, World, hosts

from farandole.control.queue.model import Phase
from farandole.control.queue.settings import QueueSettings
from farandole.control.scheduler.cluster import Allocation, Cluster
from farandole.control.scheduler.job import Decision, PolicyJob


class Chooses:
    """Gives the first job two slots, and after a while four, each with a batch; and then lets it choose."""

    resizes = True

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        begun = jobs[0].account.started if jobs[0].account.started is not None else now
        slots = 2 if now < begun + 10 else 4
        batches = {jobs[0].name: 48 * slots} if now < begun + 20 else {}
        return Decision({jobs[0].name: Allocation("slot", ((0, slots),))}, {jobs[0].name: ""}, now + 1.0, batches)


def test_job_gets_chosen_batch_with_its_slots(tmp_path: Path) -> None:
    world = World(delay=lambda: 0.5)
    daemon = FakeDaemon(tmp_path, world, hosts("h1:4"), QueueSettings(policy="fcfs"))
    daemon.policy = Chooses()
    daemon.submit("a", work=1000.0, workers="1:4")
    seen: list[tuple[int, int]] = []
    for _ in range(60):
        daemon.turns()
        (attempt,) = world.attempts.values()
        now = (sum(daemon.state.jobs["a"].slots.values()), attempt.batch)
        if not seen or seen[-1] != now:
            seen.append(now)
        if attempt.batch == 96:
            daemon.crash()  # What was said is seen in the attempt, and need not be remembered.
        world.pass_to(world.now + 0.5)
    assert daemon.state.jobs["a"].phase is Phase.RUNNING
    assert seen == [(2, 0), (2, 96), (4, 192), (4, 0)]
    daemon.close()
