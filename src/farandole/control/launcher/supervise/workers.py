"""The workers of a job: their hosts, their output, and how former workers ended."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from farandole.base.wire.rendezvous import Failure
from farandole.control.agent.protocol import Exited, NotStarted, Stop
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.failure.error_file import learn
from farandole.control.launcher.failure.record import CRASHES, WorkerRecord, how_it_ended
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, WorkerStream, open_worker
from farandole.control.launcher.output.logs import begin_attempt, rank_folder, worker_folder
from farandole.control.launcher.slots.job_events import FAILED, KILLED, STATE_LOST, SUCCEEDED
from farandole.control.launcher.supervise.output_flow import OutputFlow
from farandole.control.roster.events import Departure
from farandole.errors import SpecError, StateLostError

# Number of ended workers whose ends are kept.
MOST_RECORDS = 256
# The other workers' descriptions of a process that ends without leaving its world, and of one that falls silent; see
# `native/transport/world_status.cc`.
_WITHOUT_GOODBYE = "its process ended without saying goodbye"
_SILENT = "it fell silent"
WAS_STOPPED = "was stopped (SIGSTOP)"
# The beginning of a worker's report of such an error.
_OF_STATE_LOST = f"{StateLostError.__module__}.{StateLostError.__qualname__}"


class Worker:
    """One worker, from its start.

    Attributes:
        record: the facts about its end; `rank` is the worker's number.
        job_host: its host.
        started_at: when it was started, on the monotonic clock, in seconds.
        over: set when its end was reported to all parts of the launcher.
        told: whether its end was reported to people.
        was_member: whether it is, or was, in a world.
        stopped: whether the launcher itself has ended it.
        is_suspended: whether it is stopped by SIGSTOP, or was when it ended, according to its agent.
        stalled: the timer that runs while it is stopped.
    """

    def __init__(self, number: int, job_host: JobHost) -> None:
        self.record = WorkerRecord(number)
        self.job_host = job_host
        self.started_at = time.monotonic()
        self.over = asyncio.Event()
        self.told = False
        self.was_member = False
        self.stopped = False
        self.is_suspended = False
        self.stalled: asyncio.TimerHandle | None = None

    @property
    def number(self) -> int:
        """Its number in the roster."""
        return self.record.rank

    @property
    def host(self) -> str:
        """The label of its host."""
        return self.job_host.host.label

    @property
    def end(self) -> str:
        """How it ended, in a few words; "" if unknown, or if it left or was ended, where the roster has the reason."""
        by_us = self.stopped and self.record.exit_code in (-signal.SIGTERM, -signal.SIGKILL)
        if not self.record.ended or self.record.exit_code == 0 or by_us:
            return ""
        how = how_it_ended(self.record)
        return f"{how} ({self.record.exception})" if self.record.exception else how

    @property
    def kind_of_end(self) -> str:
        """How it ended: one of the values of `WorkerEnded.how`."""
        code = self.record.exit_code
        if code == 0:
            return SUCCEEDED
        if self.record.host_lost or (code is not None and code < 0 and -code not in CRASHES):
            return KILLED
        return STATE_LOST if self.record.exception.startswith(_OF_STATE_LOST) else FAILED

    def reported(self, failure: Failure) -> None:
        """Record its report about its own failure. Only the first report counts."""
        record = self.record
        if record.report_time is None:
            record.report_time = time.monotonic()
            record.exception = failure.exception
            record.traceback = failure.traceback
            record.consequence_of = failure.consequence_of if failure.consequence_of != record.rank else None

    def process_ended(self, message: NotStarted | Exited) -> None:
        """Record how its process ended."""
        self.record.exit_time = time.monotonic()
        if isinstance(message, Exited):
            self.record.exit_code = message.code
            self.record.out_of_memory = message.out_of_memory
            learn(self.record, message.error_file)
        else:
            self.record.not_started = message.reason

    def lost_with_host(self, lost: AgentLost) -> None:
        """Record that its host is lost, and that it has ended with the host."""
        self.record.host_lost, self.record.exit_time = str(lost), lost.at

    def stop(self, grace: float) -> None:
        """End it and all its processes, if it is alive: SIGTERM, and SIGKILL after `grace` seconds."""
        if not self.record.ended:
            self.stopped = True
            self.job_host.agent.send(Stop(self.number, grace))

    def stop_timer(self) -> None:
        """Record that it is no longer stopped."""
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None


class Workers:
    """All live workers, and the latest that have ended.

    Attributes:
        by_number: the workers.
        flow: the flow of their output.
        noun: the noun for a worker in messages: `rank`, or `worker` if ranks can change.

    Args:
        spec: the launch of the job.
        console: the terminal for the output.
        ranks: number of workers in a job of fixed size, in which workers are numbered by rank; None: an elastic job.
    """

    def __init__(self, spec: LaunchSpec, console: Console, ranks: int | None) -> None:
        self.by_number: dict[int, Worker] = {}
        # In a job that another launcher may take over, agents keep unconfirmed output.
        self.flow = OutputFlow(prompt=ranks is None)
        self.noun = "worker" if ranks is None else "rank"
        self._spec = spec
        self._console = console
        self._ranks = ranks

    def add(self, number: int, job_host: JobHost) -> Worker:
        """Add a worker that is about to be started.

        Raises:
            SpecError: the output of a worker of a job of fixed size cannot be stored.
        """
        worker = self.by_number[number] = Worker(number, job_host)
        if len(self.by_number) > MOST_RECORDS:
            ended = [each for each, known in self.by_number.items() if known.over.is_set()]
            for oldest in ended[: max(0, len(ended) - MOST_RECORDS)]:
                del self.by_number[oldest]
        self.flow.add({number: job_host.agent}, self._streams(number))
        return worker

    def resume_output(self, job_host: JobHost, streams: Iterable[tuple[int, int]]) -> None:
        """Continue to receive the output of a host's workers, from the point that another launcher has reached."""
        open_ones = set(streams)
        for number in {number for number, _ in open_ones}:
            ours = {each: stream for each, stream in self._streams(number).items() if each in open_ones}
            self.flow.add({number: job_host.agent}, ours)

    def of(self, job_host: JobHost) -> list[Worker]:
        """Return the workers of a host that have not ended."""
        return [each for each in self.by_number.values() if each.job_host is job_host and not each.record.ended]

    def of_rank(self, rank: int, world: Sequence[int]) -> Worker:
        """Return the worker that has a rank now.

        Args:
            rank: the rank in the world.
            world: the workers of the latest world, by rank; empty before the first.

        Raises:
            SpecError: there is none, or it has ended.
        """
        if not world:
            raise SpecError(f"the job has no rank {rank} yet: its workers are being started", "try again soon")
        if not 0 <= rank < len(world):
            last = len(world) - 1
            raise SpecError(
                f"the job has no rank {rank}", f"its ranks are 0 to {last}" if last else "its only rank is 0"
            )
        worker = self.by_number.get(world[rank])
        if worker is None or worker.record.ended:
            raise SpecError(f"rank {rank} has ended already", "farandole status shows which workers are running")
        return worker

    def host_of(self, number: int) -> str:
        """Return the label of a worker's host."""
        return self.by_number[number].host if number in self.by_number else "a host that is gone"

    def how_it_ended(self, loss: Departure) -> str:
        """Return how a lost worker has ended, in a few words; "" if unknown."""
        worker = self.by_number.get(loss.worker)
        if worker is None:
            return ""
        # As with os._exit(0). A worker that leaves its world is not lost; the roster knows why others left.
        if worker.record.exit_code == 0 and loss.how == _WITHOUT_GOODBYE:
            return "exited with code 0 without saying goodbye"
        if worker.is_suspended and loss.how.startswith(_SILENT):
            return WAS_STOPPED  # The others noticed it before its agent reported it.
        return worker.end

    def folder(self, number: int) -> Path:
        """Return the directory of a worker's files. Only for jobs with an output directory."""
        assert self._spec.output_dir is not None
        if self._ranks is None:
            return worker_folder(self._spec.output_dir, number)
        return rank_folder(self._spec.output_dir, number, self._ranks)

    def prepare_folders(self) -> None:
        """Prepare the output directory, if there is one, for a new job.

        Raises:
            SpecError: it cannot be used.
        """
        directory = self._spec.output_dir
        if directory is not None and (earlier := begin_attempt(directory)) is not None:
            self._console.say(f"note: files of an earlier run in {directory} are now in {earlier}")

    def _streams(self, number: int) -> dict[tuple[int, int], WorkerStream]:
        if self._spec.output_dir is None:
            return self._open(number, None)
        try:
            return self._open(number, self.folder(number))
        except SpecError as error:
            if self._ranks is not None:
                raise  # Nothing has been started yet.
            # A full disk must not end a running training.
            self._console.say(f"warning: the output of worker {number} is not stored: {error.message}")
            return self._open(number, None)

    def _open(self, number: int, folder: Path | None) -> dict[tuple[int, int], WorkerStream]:
        return open_worker(
            self._console,
            number,
            folder,
            self.flow.written,
            prefixes_in_files=self._spec.prefixes_in_files,
            timestamps=self._spec.timestamps,
        )
