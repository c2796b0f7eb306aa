"""Starts an elastic job: wires discovery, policy, setup, roster and supervisor together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from farandole.launcher.discovery.discovery import Discovery, make_source
from farandole.launcher.errors import SpecError
from farandole.launcher.host_setup.host_setup import HostSetup
from farandole.launcher.host_setup.preemption import PreemptionWatch
from farandole.launcher.host_setup.prepare import Preparation
from farandole.launcher.job.elastic import Elastic
from farandole.launcher.job.host_list import Host, slots_of
from farandole.launcher.job.machine import Machine
from farandole.launcher.job.spec import JobSpec, check_command
from farandole.launcher.output.console import Console
from farandole.launcher.plan.first import first_plan
from farandole.launcher.plan.model import LOOPBACK, Identity, Plan, Site
from farandole.launcher.slots.slot_state import Policy, most_members
from farandole.launcher.supervise.elastic import ElasticSupervisor
from farandole.launcher.supervise.failover_files import FailoverFiles, NothingLeft, NotTakenOver
from farandole.launcher.supervise.failover_state import FailoverState, read_failover_state
from farandole.launcher.supervise.fixed import Observer, Outcome, Running
from farandole.launcher.targets.local import LocalNames
from farandole.launcher.wording import count
from farandole.roster.elastic import Limits
from farandole.roster.failover_state import RosterFailoverState
from farandole.roster.service import RosterService
from farandole.wire.address import parse_address
from farandole.wire.frames import FRAME_LIMIT, LARGEST_FRAME

SECRET_BYTES = 32
# A worker takes no shorter time to leave than that, though it may be ended earlier.
LEAST_GRACE_SECONDS = 0.001


def first_hosts(spec: JobSpec, machine: Machine) -> tuple[Host, ...]:
    """Return the hosts that the user named; without any, this machine, with as many slots as the job may need.

    Raises:
        SpecError: there is no discovery, and they have too few slots.
    """
    elastic = _elastic(spec)
    if elastic.discovery:
        return ()
    most = max(spec.num_proc or 0, elastic.max_size or 0, elastic.min_size) + elastic.spares
    hosts = spec.hosts or (Host(machine.hostname, elastic.slots or most),)
    slots = sum(slots_of(host, elastic.slots) for host in hosts)
    if slots < elastic.min_size:
        raise SpecError(
            f"the job needs {count(elastic.min_size, 'worker')}, and its hosts have only {count(slots, 'slot')}",
            "give the hosts more slots, or let them be found: --host-discovery-script FILE",
        )
    return hosts


def policy_of(spec: JobSpec) -> Policy:
    """Return what the user allows."""
    elastic = _elastic(spec)
    return Policy(
        min_size=elastic.min_size,
        max_size=elastic.max_size,
        spares=elastic.spares,
        first_size=spec.num_proc or elastic.min_size,
        grace=elastic.grace,
        timeout=elastic.timeout,
        blacklist=elastic.blacklist or elastic.cooldown is not None,
        cooldown=elastic.cooldown,
    )


def limits_of(spec: JobSpec) -> Limits:
    """Return the same for the roster."""
    elastic = _elastic(spec)
    return Limits(
        elastic.min_size,
        most_members(elastic.max_size),
        start_timeout=spec.start_timeout,
        timeout=elastic.timeout,
        reset_limit=elastic.reset_limit,
    )


def exports_of(spec: JobSpec) -> tuple[str, ...]:
    """Return what its workers are told of it: how long they take to leave, and look for a roster that is lost."""
    elastic = _elastic(spec)
    grace = elastic.grace or LEAST_GRACE_SECONDS
    return f"FARANDOLE_GRACE={grace:g}", f"FARANDOLE_ROSTER_PATIENCE={elastic.patience:g}"


async def plan_elastic(spec: JobSpec, machine: Machine) -> Plan:
    """Return what would be started first, with the hosts there are now; no other host is asked anything.

    Raises:
        SpecError: it cannot be planned, or it cannot be found out which hosts there are.
    """
    elastic = _elastic(spec)
    _check_command(spec, machine)
    hosts = await make_source(elastic, first_hosts(spec, machine)).ask()
    local = LocalNames().which(hosts) if _spreads(spec) else [True] * len(hosts)
    sites = {
        host.label: Site(here, machine.cores if here else 0, spreads=_spreads(spec))
        for host, here in zip(hosts, local, strict=True)
    }
    return first_plan(spec, policy_of(spec), machine, hosts, sites)


async def launch_elastic(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    log: Callable[[str], None],
    started: Callable[[Running], None],
    call: bytes | None,
    observer: Observer,
    failover_files: FailoverFiles | None = None,
) -> Outcome:
    """Run an elastic job to its end; see `farandole.launcher.start.launch`.

    Raises:
        NothingLeft: another launcher had it, and nothing of it lives.
        NotTakenOver: another launcher had it, and it goes on without this one.
        SpecError: it cannot be started; nothing was.
    """
    inheritance = _read_failover_state(failover_files)
    job = _Launch(spec, machine, console, log, started, call, observer, failover_files)
    try:
        return await job.run(inheritance)
    except NothingLeft:
        raise
    except Exception as error:
        if inheritance is None or job.has_taken_over:
            raise
        raise NotTakenOver(f"the job could not be taken over: {error}", "its workers go on; try again") from error


def _read_failover_state(failover_files: FailoverFiles | None) -> tuple[FailoverState, RosterFailoverState] | None:
    try:
        return read_failover_state(failover_files)
    except Exception as error:  # Whatever reading what another version has written may raise.
        raise NotTakenOver(
            f"what the killed launcher has left cannot be read: {error!r}",
            "was another version of farandole installed since? take the job over with the one that started it",
        ) from error


class _Launch:
    """One job, from what the user wants, or what another launcher has left of it, to its end."""

    def __init__(
        self,
        spec: JobSpec,
        machine: Machine,
        console: Console,
        log: Callable[[str], None],
        started: Callable[[Running], None],
        call: bytes | None,
        observer: Observer,
        failover_files: FailoverFiles | None,
    ) -> None:
        self._spec = replace(spec, exports=(*spec.exports, *exports_of(spec)))
        self._machine = machine
        self._console = console
        self._log = log
        self._started = started
        self._call = call
        self._observer = observer
        self._failover_files = failover_files
        self._elastic = _elastic(spec)
        self._spreads = _spreads(spec)
        self._named = first_hosts(spec, machine)
        self._supervised: ElasticSupervisor | None = None

    @property
    def has_taken_over(self) -> bool:
        """Whether the hosts that another launcher had are this one's now."""
        return self._supervised is not None and self._supervised.has_taken_over

    async def run(self, inheritance: tuple[FailoverState, RosterFailoverState] | None) -> Outcome:
        """Run the job to its end; go on with it, if another launcher has left something."""
        failover, memory = inheritance or (None, None)
        discovery = await self._discovery(failover)
        identity = _new_identity(self._spec) if failover is None else failover.identity
        preparation = await self._preparation(identity, failover)
        supervisor = self._supervised = self._supervisor(discovery)
        service = self._service(identity, supervisor, memory)
        # A successor listens only when it knows the workers, and where they look for it.
        roster = await service.start(LOOPBACK) if failover is None else failover.roster
        setup = self._setup(preparation, identity, roster)
        try:
            self._started(supervisor)
            return await supervisor.run(service, setup, lambda: service.start(*parse_address(roster)), failover)
        finally:
            await service.close()

    async def _discovery(self, failover: FailoverState | None) -> Discovery:
        elastic = self._elastic
        source = make_source(elastic, self._named)
        discovery = Discovery(source, self._console.say, elastic.discovery, elastic.timeout)
        if failover is None:
            _check_command(self._spec, self._machine)
            await discovery.first()
        else:
            discovery.hosts = failover.hosts.found
        return discovery

    async def _preparation(self, identity: Identity, failover: FailoverState | None) -> Preparation:
        preparation = Preparation(
            self._spec, self._machine, self._console, self._log, identity.job, spreads=self._spreads
        )
        if self._spec.ship and self._spreads:
            try:
                await preparation.take_stock()
            except SpecError as error:
                if failover is None:
                    raise
                self._console.say(f"warning: hosts that come now get no code: {error.message}")
        return preparation

    def _supervisor(self, discovery: Discovery) -> ElasticSupervisor:
        return ElasticSupervisor(
            self._spec,
            policy_of(self._spec),
            discovery,
            dict(self._machine.environment),
            self._console,
            self._log,
            self._observer,
            self._failover_files,
        )

    def _service(
        self, identity: Identity, supervisor: ElasticSupervisor, memory: RosterFailoverState | None
    ) -> RosterService:
        return RosterService(
            (),
            bytes.fromhex(identity.secret),
            on_failure=supervisor.failure_reported,
            on_progress=supervisor.progress_reported,
            log=self._log,
            call=self._call,
            elastic=limits_of(self._spec),
            watcher=supervisor,
            memory=memory,
            remember=supervisor.remember,
            frame_limit=FRAME_LIMIT if self._call is None else LARGEST_FRAME,
        )

    def _setup(self, preparation: Preparation, identity: Identity, roster: str) -> HostSetup:
        # Without any name of the user's, the one host is this machine, whatever its own name leads to.
        here = frozenset() if self._spreads else frozenset(host.label for host in self._named)
        preemption = PreemptionWatch(self._elastic, self._machine.environment, self._console.say)
        return HostSetup(preparation, self._spec.ssh, identity, roster, here, self._spreads, preemption)


def _new_identity(spec: JobSpec) -> Identity:
    return Identity(secrets.token_hex(8), spec.master, secrets.token_bytes(SECRET_BYTES).hex())


def _check_command(spec: JobSpec, machine: Machine) -> None:
    if not _spreads(spec):
        check_command(spec.command, machine.directory, machine.environment)


def _spreads(spec: JobSpec) -> bool:
    """Say whether workers may come to be on other machines."""
    return bool(_elastic(spec).discovery or spec.hosts)


def _elastic(spec: JobSpec) -> Elastic:
    assert spec.elastic is not None
    return spec.elastic
