"""Starts an elastic job: connects discovery, slot rules, host setup, roster and supervisor."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from farandole.base.display.wording import count
from farandole.base.wire.address import parse_address
from farandole.control.launcher.agents.reception import FENCED_SECONDS, Reception
from farandole.control.launcher.discovery.discovery import Discovery, make_source
from farandole.control.launcher.host_setup.host_setup import HostSetup
from farandole.control.launcher.host_setup.preemption import PreemptionWatch
from farandole.control.launcher.host_setup.prepare import Preparation
from farandole.control.launcher.job.elastic import DIAL, Elastic
from farandole.control.launcher.job.host_list import Host, slots_of
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, check_command, check_witnesses
from farandole.control.launcher.plan.first import first_plan
from farandole.control.launcher.plan.model import LOOPBACK, Identity, LaunchPlan, Site
from farandole.control.launcher.slots.job_state import JobState, SlotPolicy
from farandole.control.launcher.supervise.elastic_job import ElasticJob
from farandole.control.launcher.supervise.failover_files import FailoverStore, NothingLeft, NotTakenOver
from farandole.control.launcher.supervise.failover_state import FailoverState, read_failover_state
from farandole.control.launcher.supervise.job_metrics import serve_job_metrics
from farandole.control.launcher.supervise.launch_context import SECRET_BYTES, LaunchContext
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.supervise.take_over import take_over
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.roster.elastic import MAJORITY_SECONDS, ElasticState, Limits
from farandole.control.roster.membership import ANY_SIZE
from farandole.errors import SpecError

# Seconds; the shortest time in which workers believe that they must leave, though they may be ended earlier.
LEAST_GRACE_SECONDS = 0.001
_MARGIN_SECONDS = 5.0


def first_hosts(spec: LaunchSpec, machine: Machine) -> tuple[Host, ...]:
    """Return the hosts that the user named, or this machine if there are none.

    This machine has the slots of the first world, and more if there are GPUs or cores and --max-np allows it.

    Raises:
        SpecError: there is no discovery, and the hosts have too few slots.
    """
    elastic = _elastic(spec)
    if elastic.discovery:
        return ()
    beginning = max(spec.num_proc or 0, elastic.min_size)
    slots = max(beginning, min(elastic.max_size or 0, machine.gpus or machine.cores)) + elastic.spares
    if spec.witnesses:
        check_witnesses(spec, sum(not local for local in LocalNames().which(spec.hosts)))
    hosts = spec.hosts or (Host(machine.hostname, elastic.slots or slots),)
    slots = sum(slots_of(host, elastic.slots) for host in hosts)
    if slots < elastic.min_size:
        raise SpecError(
            f"the job needs {count(elastic.min_size, 'worker')}, and its hosts have only {count(slots, 'slot')}",
            "give the hosts more slots, or use host discovery: --host-discovery-script FILE",
        )
    return hosts


def first_state(spec: LaunchSpec) -> JobState:
    """Return the initial state of a job, with only the user's limits."""
    elastic = _elastic(spec)
    policy = SlotPolicy(
        spares=elastic.spares,
        first_size=spec.num_proc or elastic.min_size,
        first_most=None if elastic.fills_at_once else spec.num_proc,
        grace=elastic.grace,
        blacklist=elastic.blacklist or elastic.cooldown is not None,
        cooldown=elastic.cooldown,
    )
    # Agents that dial outlive their launcher: the workers of a silent host have certainly ended only after this time.
    certain = elastic.search_timeout + FENCED_SECONDS + _MARGIN_SECONDS if elastic.hosts_dial else 0.0
    limits = Limits(
        elastic.min_size,
        ANY_SIZE if elastic.max_size is None else elastic.max_size,
        start_timeout=spec.start_timeout,
        timeout=elastic.timeout,
        majority_timeout=max(MAJORITY_SECONDS, certain),
        reset_limit=elastic.reset_limit,
    )
    return JobState(policy, ElasticState(limits))


def note_on_slots(spec: LaunchSpec, machine: Machine, hosts: Sequence[Host]) -> str:
    """Return why the job cannot have --max-np workers; "" if it can, or if there may be other hosts later."""
    elastic = _elastic(spec)
    slots = sum(slots_of(host, elastic.slots) for host in hosts) - elastic.spares
    if elastic.discovery or elastic.max_size is None or slots >= elastic.max_size:
        return ""
    if spec.hosts:
        return f"the hosts have {count(slots, 'slot')}: the job stays below --max-np {elastic.max_size}"
    what = "GPU" if machine.gpus else "core"
    here = f"no hosts are given, so this machine has a slot for each {what}, and at least -np: {count(slots, 'slot')}"
    return f"{here}. -H localhost:{elastic.max_size} lets the job grow to --max-np {elastic.max_size} workers"


def exports_of(spec: LaunchSpec) -> tuple[str, ...]:
    """Return environment variables for the workers: the grace period, and the limit of the search for a lost roster."""
    elastic = _elastic(spec)
    grace = elastic.grace or LEAST_GRACE_SECONDS
    return f"FARANDOLE_GRACE={grace:g}", f"FARANDOLE_ROSTER_PATIENCE={elastic.search_timeout:g}"


async def plan_elastic(spec: LaunchSpec, machine: Machine) -> LaunchPlan:
    """Return the plan of the first workers on the current hosts; no other host is contacted.

    Raises:
        SpecError: there is no valid plan, or host discovery failed.
    """
    elastic = _elastic(spec)
    _check_command(spec, machine)
    hosts = await make_source(elastic, first_hosts(spec, machine)).ask()
    local = LocalNames().which(hosts) if _spreads(spec) else [True] * len(hosts)
    sites = {
        host.label: Site(here, machine.cores if here else 0, spreads=_spreads(spec))
        for host, here in zip(hosts, local, strict=True)
    }
    plan = first_plan(spec, first_state(spec), machine, hosts, sites)
    note = note_on_slots(spec, machine, hosts)
    return replace(plan, notes=(*plan.notes, note)) if note else plan


async def launch_elastic(context: LaunchContext, failover_files: FailoverStore | None) -> JobOutcome:
    """Run an elastic job to its end; see `farandole.control.launcher.start.launch.launch`.

    Args:
        context: the context of the launch.
        failover_files: the storage of the facts that another launcher needs; None for none.

    Raises:
        NothingLeft: no part of the previous launcher's job is alive.
        NotTakenOver: the previous launcher's job continues without this launcher.
        SpecError: the job cannot be started; nothing was.
    """
    left = read_failover_state(failover_files)
    job = _ElasticLaunch(context, failover_files, left)
    try:
        return await job.run()
    except NothingLeft:
        raise
    except Exception as error:
        if left is None or job.has_taken_over:
            raise
        raise NotTakenOver(f"the job could not be taken over: {error}", "its workers continue; try again") from error


class _ElasticLaunch:
    """Runs one job to its end, from its spec or from the state that another launcher has left."""

    def __init__(
        self, context: LaunchContext, failover_files: FailoverStore | None, left: FailoverState | None
    ) -> None:
        spec = context.spec
        self._context = replace(context, spec=replace(spec, exports=(*spec.exports, *exports_of(spec))))
        self._failover_files = failover_files
        self._left = left
        self._elastic = _elastic(spec)
        self._spreads = _spreads(spec)
        self._named = first_hosts(spec, context.machine)
        self._supervisor: Supervisor | None = None
        if left is None and (note := note_on_slots(spec, context.machine, self._named)):
            context.console.say(f"note: {note}")
        self._reception = context.reception or _reception(self._elastic)
        self._context = replace(self._context, reception=self._reception)

    @property
    def has_taken_over(self) -> bool:
        """Whether this launcher has taken over the hosts of another launcher."""
        return self._supervisor is not None and self._supervisor.has_taken_over

    async def run(self) -> JobOutcome:
        """Run the job to its end, or continue the job that another launcher has left."""
        if self._reception is None:
            return await self._run()
        await self._reception.start(self._context.console.say, self._left is not None)
        try:
            return await self._run()
        finally:
            await self._reception.close()

    async def _run(self) -> JobOutcome:
        context, left = self._context, self._left
        discovery = await self._discovery()
        identity = _new_identity(context.spec) if left is None else left.identity
        setup = self._setup(await self._preparation(identity), identity)
        state = first_state(context.spec) if left is None else left.state
        secret = bytes.fromhex(identity.secret)
        job = self._supervisor = Supervisor(context, state, secret, setup, self._failover_files)
        elastic = ElasticJob(job, discovery)
        following = None if left is None else partial(self._take_over, job, left, setup)
        try:
            # A successor listens only once it knows the workers, and the address at which they look for it.
            setup.roster = await job.service.start(LOOPBACK) if left is None else left.roster
            context.started(elastic)
            name = context.name or identity.job
            with serve_job_metrics(context.spec, context.machine, job, name, context.console.say):
                return await job.run(lambda: elastic.begin(following), setup.hint)
        finally:
            await job.service.close()

    async def _take_over(self, job: Supervisor, left: FailoverState, setup: HostSetup) -> None:
        listen = partial(job.service.start, *parse_address(left.roster))
        await take_over(job, left, setup, listen, self._context.console)

    async def _discovery(self) -> Discovery:
        context, elastic = self._context, self._elastic
        source = make_source(elastic, self._named, self._reception)
        discovery = Discovery(source, context.console.say, elastic.discovery, elastic.timeout)
        if self._left is None:
            _check_command(context.spec, context.machine)
            await discovery.first()
        else:
            discovery.hosts = self._left.hosts.found
        return discovery

    async def _preparation(self, identity: Identity) -> Preparation:
        context = self._context
        preparation = Preparation(
            context.spec, context.machine, context.console, context.log, identity.job, spreads=self._spreads
        )
        if context.spec.ship and self._spreads:
            try:
                await preparation.build_manifest()
            except SpecError as error:
                if self._left is None:
                    raise
                context.console.say(f"warning: hosts that join now get no code: {error.message}")
        if self._left is None:
            _check_plan(preparation)
        return preparation

    def _setup(self, preparation: Preparation, identity: Identity) -> HostSetup:
        context = self._context
        # Without hosts named by the user, the only host is this machine, whatever its own name resolves to.
        here = frozenset() if self._spreads else frozenset(host.label for host in self._named)
        preemption = PreemptionWatch(self._elastic, context.machine.environment, context.console.say)
        gate = None if self._failover_files is None else self._failover_files.gate
        return HostSetup(
            preparation, context.spec.ssh, identity, here, self._spreads, preemption, self._reception, gate
        )


def _reception(elastic: Elastic) -> Reception | None:
    kind, _, place = elastic.discovery.partition(":")
    return Reception.at(place, elastic.search_timeout) if kind == DIAL else None


def _new_identity(spec: LaunchSpec) -> Identity:
    return Identity(secrets.token_hex(8), spec.master, secrets.token_bytes(SECRET_BYTES).hex())


def _check_command(spec: LaunchSpec, machine: Machine) -> None:
    if not _spreads(spec):
        check_command(spec.command, machine.directory, machine.environment)


def _check_plan(preparation: Preparation) -> None:
    """Raise an error that the plans of all hosts would have, such as a variable that is not set.

    Later, it would only make each host unusable, and the job would wait for hosts.
    """
    host = Host(LOOPBACK, 1)
    preparation.for_host(host).plan(Identity(), {host.label: Site(local=False, cores=0)})


def _spreads(spec: LaunchSpec) -> bool:
    """Return whether workers may run on other machines."""
    return bool(_elastic(spec).discovery or spec.hosts)


def _elastic(spec: LaunchSpec) -> Elastic:
    assert spec.elastic is not None
    return spec.elastic
