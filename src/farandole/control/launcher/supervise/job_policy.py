"""What a supervisor asks of the policy of its job: what follows from what happens to hosts and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.base.wire.rendezvous import Progress
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.slots.slot_events import Event
from farandole.control.launcher.supervise.workers import Worker

if TYPE_CHECKING:
    from farandole.control.launcher.supervise.supervisor import Supervisor


class JobPolicy:
    """What follows from what happens in a job; this one does nothing. Called in the loop's thread.

    `FixedPolicy` is that of a job whose workers all start and end together, `ElasticPolicy` that of a job whose workers
    come and go.

    Attributes:
        noun: what people call a worker: `rank` where it keeps its rank, `worker` where its rank changes.
        fence: whether the workers of a lost host count as ended only when that is certain.
        notice_seconds: how long it takes at most until workers have heard of the end of the job. They get SIGTERM only
            then.
    """

    noun = "rank"
    fence = False
    notice_seconds = 0.0

    async def begin(self, job: Supervisor) -> None:
        """Begin the job: from now on, this policy is told what happens.

        Raises:
            SpecError: it cannot begin; nothing was started.
        """

    @property
    def size(self) -> int:
        """Workers that live, as people are told."""
        return 0

    @property
    def follows_a_loss(self) -> str:
        """What will become of the job if a worker is lost now, in a few words."""
        return ""

    def worker_over(self, worker: Worker) -> None:
        """A worker has certainly ended, and has nothing more to say."""

    def progressed(self, progress: Progress) -> None:
        """Some worker has told how it gets on."""

    def host_lost(self, job_host: JobHost, lost: AgentLost) -> list[Worker]:
        """A host is lost; return the workers that count as ended only when that is certain."""
        return []

    def host_leaves(self, label: str) -> None:
        """A host was asked to go."""

    def happened(self, event: Event) -> None:
        """Something has happened to a host that is reached while the job runs."""

    def postpones_end(self, code: int) -> bool:
        """Return whether the user's wish to end the job has to wait; the policy then carries it out."""
        return False

    def end_begins(self) -> None:
        """The job is being ended."""

    def close(self) -> None:
        """The job is over, or supervising it has failed."""
