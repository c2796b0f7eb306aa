"""How a worker joins the others: at its launcher's roster, at a roster that rank 0 serves, or not at all.

`plan_join` decides which, from the environment; `join_world` does it.

- farandole's launcher has set FARANDOLE_ROSTER: its roster is at that address and knows every worker.
- Another launcher started this worker (see `external_launcher`): rank 0 serves the roster. The other ranks read its
  address in FARANDOLE_ROSTER, if the user has set it, or else in a meeting file in the user's home. They may start
  before rank 0, and the file may be an old one: so they retry until they have found the roster, or until the start
  timeout has passed.
- No launcher started this worker, or it is the only worker: a world of one, without a network.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from farandole.base import external_launcher
from farandole.base.external_launcher import ExternalPlacement
from farandole.base.settings.table import Settings
from farandole.base.wire import interfaces
from farandole.base.wire.address import parse_address
from farandole.base.wire.errors import AuthenticationFailed
from farandole.base.wire.host_identity import here
from farandole.base.wire.rendezvous import RendezvousError, RosterUnreachable, World
from farandole.base.wire.roster_client import RosterClient
from farandole.errors import SettingError, StartError, WorkerLostError
from farandole.worker.core.own_roster import OwnRoster
from farandole.worker.core.user_files import MeetingFile, job_secret

LOOPBACK = "127.0.0.1"

# Seconds between two attempts to find rank 0: short at first, when it is about to start; then long enough to cost
# little.
_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 0.5
# The address may be that of an earlier job, so an attempt takes no longer than this before the file is read again.
_ATTEMPT_SECONDS = 3.0

ALONE = World(
    generation=1,
    rank=0,
    size=1,
    contacts=(),
    local_rank=0,
    local_size=1,
    cross_rank=0,
    cross_size=1,
    hostnames=("localhost",),
)


@dataclass(frozen=True)
class JoinPlan:
    """How this worker will join the others."""

    settings: Settings
    """The settings, with everything that was found out: rank, secret, and the address to listen on."""
    found: ExternalPlacement | None = None
    """The job that another launcher started; None: farandole's launcher serves the roster, or none is needed."""

    @property
    def is_alone(self) -> bool:
        """Whether the worker enters a world of one, without a roster."""
        return self.settings.roster is None and self.found is None


class JoinedWorld(NamedTuple):
    """A worker's place, and the objects that it needs while it is there."""

    world: World
    """The world. In an elastic job, `worlds.enter` must still be called."""
    roster: RosterClient | None
    """The connection to the roster; None in a world that needs none."""
    own_roster: OwnRoster | None
    """The roster that this worker itself serves."""


def plan_join(settings: Settings, environment: Mapping[str, str]) -> JoinPlan:
    """Find out how this worker was started, and complete its settings accordingly.

    Raises:
        SettingError: variables contradict each other or something is missing.
        StartError: the user's key cannot be read or created.
    """
    # The launcher that serves the roster gives the rank; the size counts only if it also names the job.
    placed = environment.get("FARANDOLE_RANK") and (settings.job or not environment.get("FARANDOLE_SIZE"))
    if settings.roster is not None and placed:
        _check_no_launcher_within(environment)
        return JoinPlan(settings)
    found = external_launcher.find(environment)
    if found is None:
        if settings.roster is not None and settings.job:
            raise SettingError(
                "FARANDOLE_ROSTER and FARANDOLE_JOB are set, but not this worker's rank: set FARANDOLE_RANK, too."
            )
        return JoinPlan(settings)
    if found.size == 1 and not settings.job:
        return JoinPlan(dataclasses.replace(settings, roster=None))
    settings = dataclasses.replace(settings, rank=found.rank, listen=settings.listen or _listen(settings, found))
    if settings.job:
        return JoinPlan(settings)
    found = dataclasses.replace(found, job_key=settings.job_key or found.job_key)
    _check_told_apart(settings, found)
    secret = settings.secret or job_secret(found.job_key)
    return JoinPlan(dataclasses.replace(settings, secret=secret), found)


def _check_no_launcher_within(environment: Mapping[str, str]) -> None:
    """Raise an error if `farandole run` has started another launcher, of whose workers this process is one."""
    within = external_launcher.find_within(environment)
    if within is not None and within.size > 1:
        raise SettingError(
            f"this process was started by two launchers: `farandole run` has started {within.starter} as a worker, and "
            f"{within.starter} this process, as rank {within.rank} of {within.size}. Use one of the two: "
            "`farandole run -np N python train.py` starts all workers by itself, and so does "
            f"{within.starter} without `farandole run`."
        )


def _check_told_apart(settings: Settings, found: ExternalPlacement) -> None:
    if settings.roster is None and not found.job_key:
        raise SettingError(
            f"rank {found.rank} of {found.size}, started by {found.starter}, does not know where to meet the others. "
            "Set FARANDOLE_ROSTER=<host of rank 0>:<port> and the same FARANDOLE_SECRET (64 hexadecimal digits) on all "
            "workers. Or, if they share a home directory, set FARANDOLE_JOB_KEY to a word that is the same on all of "
            "them and no other job's."
        )


def _listen(settings: Settings, found: ExternalPlacement) -> str:
    """Return the addresses on which the others may reach this worker."""
    if settings.network:
        return ",".join(each.address for each in interfaces.addresses(settings.network))
    by_hand_here = settings.roster is not None and not settings.job and _is_loopback(settings.roster)
    if found.one_host or by_hand_here:
        return LOOPBACK
    return ",".join(each.address for each in interfaces.addresses()) or LOOPBACK


def _is_loopback(roster: str) -> bool:
    return all(_host_is_loopback(parse_address(address)[0]) for address in roster.split(","))


def _host_is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def join_world(way: JoinPlan, contact: str) -> JoinedWorld:
    """Wait until all workers have met.

    Args:
        way: the way to join, from `plan_join`.
        contact: the data by which the others reach this worker.

    Raises:
        StartError: they did not meet; the message says why and what to do.
        WorkerLostError: one of them will never join.
    """
    if way.is_alone:
        return JoinedWorld(ALONE, None, None)
    try:
        if way.found is not None:
            return _SelfServedJoin(way.settings, way.found, contact).run()
        search_timeout = way.settings.roster_patience if way.settings.elastic else 0.0
        roster = _connect(way.settings, way.settings.roster or "", way.settings.start_timeout, search_timeout)
        if way.settings.elastic:
            return JoinedWorld(ALONE, roster, None)
        return JoinedWorld(_join(roster, contact, way.settings.start_timeout), roster, None)
    except RendezvousError as error:
        if error.rank is not None:
            raise WorkerLostError(str(error), error.rank) from error
        raise StartError(str(error)) from error


def _connect(settings: Settings, addresses: str, timeout: float, search_timeout: float = 0.0) -> RosterClient:
    return RosterClient.connect(
        addresses, settings.secret, worker=settings.rank, timeout=timeout, search_timeout=search_timeout
    )


def _join(roster: RosterClient, contact: str, timeout: float) -> World:
    host, hostname = here()
    try:
        return roster.join(contact, timeout, host=host, hostname=hostname)
    except BaseException:
        roster.close()
        raise


class _SelfServedJoin:
    """The join of workers that another launcher started, one of which serves the roster."""

    def __init__(self, settings: Settings, found: ExternalPlacement, contact: str) -> None:
        self._settings = settings
        self._found = found
        self._contact = contact
        self._file = MeetingFile(found.job_key) if settings.roster is None else None
        self._deadline = time.monotonic() + settings.start_timeout

    def run(self) -> JoinedWorld:
        """Serve the roster if this worker is rank 0, and join it."""
        if self._found.rank != 0:
            return self._seek()
        own = OwnRoster(self._found.size, self._settings.secret, _to_serve_on(self._settings))
        try:
            if self._file is not None:
                self._file.write(own.addresses)
            roster = _connect(self._settings, own.addresses, self._left())
            return JoinedWorld(_join(roster, self._contact, self._settings.start_timeout), roster, own)
        except BaseException:
            own.close()
            raise
        finally:
            if self._file is not None:
                self._file.remove()

    def _seek(self) -> JoinedWorld:
        """Search for rank 0's roster until this worker is in the world."""
        pause = _FIRST_PAUSE_SECONDS
        trouble: RosterUnreachable | None = None
        while self._left() > 0:
            addresses = self._file.read() if self._file is not None else self._settings.roster
            try:
                if addresses:
                    roster = _connect(self._settings, addresses, min(self._left(), _ATTEMPT_SECONDS))
                    return JoinedWorld(_join(roster, self._contact, self._settings.start_timeout), roster, None)
            except RosterUnreachable as error:
                # A file may be an earlier job's, but a user's setting is trusted.
                if self._file is None and isinstance(error.__cause__, AuthenticationFailed):
                    raise
                trouble = error
            except ValueError:
                pass  # Without addresses, it is another program's file.
            time.sleep(min(pause, max(self._left(), 0.0)))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        raise StartError(self._in_vain(trouble)) from trouble

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _in_vain(self, trouble: RosterUnreachable | None) -> str:
        where = f"wrote {self._file.path}" if self._file is not None else f"answered at {self._settings.roster}"
        if trouble is None:
            what = f"nobody {where}"
        else:
            what = str(trouble.__cause__ or trouble)
        text = (
            f"rank {self._found.rank} of {self._found.size}, started by {self._found.starter}, did not meet rank 0 "
            f"within {self._settings.start_timeout:g} s: {what}. See rank 0's last lines: it may not call init() or "
            "need longer to start (FARANDOLE_START_TIMEOUT)."
        )
        if self._file is None:
            return f"{text} Check that rank 0 runs on FARANDOLE_ROSTER's host, and that it can be reached from here."
        return (
            f"{text} If the workers do not share a home directory, they cannot share that file: then export to all of "
            "them the same FARANDOLE_SECRET (64 hexadecimal digits, such as from: openssl rand -hex 32) and "
            "FARANDOLE_ROSTER=<host of rank 0>:<port>."
        )


def _to_serve_on(settings: Settings) -> list[tuple[str, int]]:
    """Return the numeric addresses and ports on which rank 0 serves the roster."""
    if settings.roster is None:
        return [(address, 0) for address in settings.listen.split(",")]
    served = []
    for host, port in map(parse_address, settings.roster.split(",")):
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise StartError(f"FARANDOLE_ROSTER: {host} is not a known host: {error.strerror}") from error
        hosts = list(dict.fromkeys(str(where[0]) for _, _, _, _, where in found))
        # On many machines the own name means 127.0.1.1, which others cannot reach.
        if all(map(_host_is_loopback, hosts)) and not _host_is_loopback(host):
            hosts += [each.address for each in interfaces.addresses(settings.network)]
        served += [(each, port) for each in hosts]
    return served
