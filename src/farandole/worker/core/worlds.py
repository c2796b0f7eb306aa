"""How a worker of an elastic job enters one world after another.

`enter` joins the roster and forms the world that it announces, until that succeeds: a world may break while it is being
formed, and then its members report the missing one, and join again. Members with a link to the lost one detect it; the
roster notifies all others, and ends the formation as it would end the world.

`Notices` receives the roster's unsolicited messages: that the world is about to change, that one of its members is
lost, that the job is being ended.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from farandole.base.settings.table import Settings
from farandole.base.wire.host_identity import here
from farandole.base.wire.rendezvous import (
    Accused,
    Changed,
    Coming,
    Ending,
    Heard,
    NotWanted,
    RendezvousError,
    Revoked,
    RosterUnreachable,
    ScheduledBatch,
    World,
)
from farandole.base.wire.roster_client import RosterClient
from farandole.errors import EvictedError, FarandoleError, JobOverError, StartError, WorkerLostError
from farandole.worker.core.engine import Cause, Engine
from farandole.worker.core.tuning_files import use_kept

# All members of a world have just spoken with the roster, so they are alive, and answer soon. The loss of one meanwhile
# is reported by others or the roster: this is for cases that neither sees, such as a network that lets only some
# through.
FORM_SECONDS = 5.0


def enter(
    engine: Engine,
    roster: RosterClient,
    settings: Settings,
    *,
    generation: int,
    trained: bool,
    accused: Sequence[Accused],
    arriving: bool = False,
    open: bool = True,
) -> World:
    """Join the roster and form the next world, again and again until it is formed.

    Args:
        engine: the engine that forms the world.
        roster: the roster that announces the world.
        settings: the settings, with the job's secret.
        generation: the generation of the world that this worker was in; 0: none.
        trained: whether it holds the job's state.
        accused: the workers that it lost there.
        arriving: whether to return a preview, of generation 0, instead of forming a world, if there is one already.
        open: whether newcomers may enter the next world.

    Raises:
        EvictedError: this worker has been removed from the job.
        JobOverError: there will be no next world.
        StartError: the roster is lost, and was not found within the time that the settings allow.
    """
    host, hostname = here()
    while True:
        try:
            world = roster.join(
                engine.contact,
                None,
                host=host,
                hostname=hostname,
                generation=generation,
                trained=trained,
                accused=accused,
                arriving=arriving,
                open=open,
            )
        except NotWanted as error:
            raise EvictedError(str(error)) from error
        except RendezvousError as error:
            over = generation > 0 and not isinstance(error, RosterUnreachable)
            raise (JobOverError if over else StartError)(str(error)) from error
        if world.generation == 0:
            return world
        use_kept(settings, world, engine)
        try:
            engine.form(world.generation, world.rank, world.size, world.contacts, settings.secret, FORM_SECONDS)
            return world
        except (WorkerLostError, StartError) as error:
            generation = world.generation
            accused = _missed(error)


def goodbye(error: EvictedError) -> SystemExit:
    """Print that this worker leaves the job, and return the exception that ends its program."""
    print(f"farandole: this worker leaves the job: {error}", file=sys.stderr, flush=True)
    return SystemExit(0)


def accusations(engine: Engine) -> list[Accused]:
    """Return the workers that the engine's world has lost, if it has ended because of that.

    A worker whose engine has failed is not lost: it joins again like the others, which wait for it.
    """
    cause = engine.cause()
    if cause is None or cause.rank is None or cause.has_failed:
        return []
    # The text begins with the rank, which the roster has in a separate field.
    return [Accused(cause.rank, cause.how.removeprefix(f"rank {cause.rank} "), cause.certain, left=cause.left)]


def _missed(error: FarandoleError) -> list[Accused]:
    """Return the workers that were missing when a world could not be formed."""
    if not isinstance(error, WorkerLostError | StartError) or error.rank is None:
        return []
    return [Accused(error.rank, "could not be reached", certain=False, forming=True)]


class OwnFailures:
    """The failures of this worker's engine, for example because of errors of NCCL.

    The worker continues after a failure, but not after a second one without progress in between: the error would come
    again.
    """

    def __init__(self) -> None:
        """Create the object; there has been no failure."""
        self._has_failed = False

    def progress(self) -> None:
        """Record that a step counts, or that a state was committed."""
        self._has_failed = False

    def end_world(self, cause: Cause | None, rank: int) -> None:
        """Record why a world has ended in which this worker had a rank.

        Raises:
            StartError: it is this worker's second failure without progress.
        """
        if cause is None or not cause.has_failed or cause.rank != rank:
            return
        if self._has_failed:
            raise StartError(
                f"rank {rank} does not continue: its engine has failed twice, without a step or a commit in between. "
                f"The second time: {cause.how}"
            )
        self._has_failed = True


class Notices:
    """The roster's unsolicited messages to a member of a world. `heard` is called in the roster client's thread."""

    def __init__(self, engine: Engine) -> None:
        """Create the object; there is no world yet."""
        self._change: Changed | None = None
        """The latest message, which may be about a world that has been announced but is not formed yet."""
        self._engine = engine
        self._generation = 0
        self._coming = 0
        self._batch = 0
        self._ending = False

    def abandon_world(self) -> None:
        """Ignore further changes of the current world."""
        self.entered(0)

    def entered(self, generation: int) -> None:
        """From now on, handle only changes of that world."""
        self._generation = generation

    @property
    def change(self) -> Changed | None:
        """The message about the current world's change that has not been handled yet."""
        change = self._change
        if change is None or change.generation != self._generation or not (change.added or change.removed):
            return None
        return change

    @property
    def coming(self) -> int:
        """The number of workers that have been started and have not joined yet."""
        return self._coming

    def heard(self, message: Heard) -> None:
        """Record a notice."""
        if isinstance(message, Changed):
            self._change = message
        elif isinstance(message, Revoked):
            self._revoke(message)
        elif isinstance(message, Coming):
            self._coming = message.workers
        elif isinstance(message, ScheduledBatch):
            self._batch = message.samples
        elif isinstance(message, Ending):
            self._ending = True

    @property
    def scheduled_batch(self) -> int:
        """The batch size of all workers that the scheduler has chosen; 0: the job itself chooses."""
        return self._batch

    @property
    def job_ends(self) -> bool:
        """Whether the job is being ended."""
        return self._ending

    def _revoke(self, message: Revoked) -> None:
        # The engine knows which world is meant: the current one, one that is being formed in another thread, or one
        # that has been announced and will be.
        how = f"rank {message.rank} {message.how}"
        self._engine.revoke(message.rank, how, message.certain, generation=message.generation)


class Preemption:
    """On SIGTERM, finishes the step and leaves gracefully; ends after the grace period, or when the job ends.

    While the roster is lost, the request waits for its successor, and the grace period continues.

    Installed only if the program has no other handler, and only in the main thread.
    """

    def __init__(self, roster: RosterClient, notices: Notices, grace: float) -> None:
        """Install the signal handler."""
        self._roster = roster
        self._notices = notices
        self._grace = grace
        self._asked = False
        self._worker = os.getpid()
        self._armed = (
            threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        )
        if self._armed:
            signal.signal(signal.SIGTERM, self._terminated)

    def close(self) -> None:
        """Restore the default action of SIGTERM, which ends the process."""
        if self._armed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._armed = False

    def _terminated(self, signum: int, frame: object) -> None:
        # A forked process also has the handler, and must not act for the worker.
        if self._asked or self._notices.job_ends or os.getpid() != self._worker:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self._asked = True
        # The handler may have interrupted the code that holds the connection.
        threading.Thread(target=self._ask, name="farandole-leaving", daemon=True).start()
        timer = threading.Timer(self._grace, os.kill, (os.getpid(), signum))
        timer.daemon = True
        timer.start()

    def _ask(self) -> None:
        try:
            self._roster.ask_to_leave("it got SIGTERM")
        except RendezvousError:
            # There is no roster to say goodbye to: the search for it has timed out.
            os.kill(os.getpid(), signal.SIGTERM)
