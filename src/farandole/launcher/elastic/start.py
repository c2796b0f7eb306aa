"""Starts an elastic job: wires discovery, policy, reception, roster and supervisor together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from farandole.core.wire import FRAME_LIMIT, LARGEST_FRAME
from farandole.launcher.elastic.discovery import Discovery, make_source
from farandole.launcher.elastic.plan import first_plan
from farandole.launcher.elastic.preemption import Lookout
from farandole.launcher.elastic.reception import Reception
from farandole.launcher.elastic.slots.state import Policy, most_members
from farandole.launcher.elastic.spec import Elastic
from farandole.launcher.elastic.supervisor import ElasticSupervisor
from farandole.launcher.errors import SpecError
from farandole.launcher.hosts import Host, slots_of
from farandole.launcher.machine import Machine
from farandole.launcher.output.console import Console
from farandole.launcher.plan import LOOPBACK, Identity, Plan, Site
from farandole.launcher.prepare import Preparation
from farandole.launcher.reach import LocalNames
from farandole.launcher.spec import JobSpec, check_command
from farandole.launcher.supervise import Observer, Outcome, Running
from farandole.roster.elastic import Limits
from farandole.roster.service import RosterService

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
            f"{elastic.min_size} workers are needed, and there are only {slots} slots",
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
) -> Outcome:
    """Run an elastic job to its end; see `farandole.launcher.start.launch`.

    Raises:
        SpecError: it cannot be started; nothing was.
    """
    elastic = _elastic(spec)
    named = first_hosts(spec, machine)
    _check_command(spec, machine)
    discovery = Discovery(make_source(elastic, named), console.say, elastic.discovery, elastic.timeout)
    await discovery.first()
    spreads = _spreads(spec)
    identity = Identity(secrets.token_hex(8), spec.master, secrets.token_bytes(SECRET_BYTES).hex())
    spec = replace(spec, exports=(*spec.exports, f"FARANDOLE_GRACE={elastic.grace or LEAST_GRACE_SECONDS:g}"))
    preparation = Preparation(spec, machine, console, log, identity.job, spreads)
    if spec.ship and spreads:
        await preparation.take_stock()
    supervisor = ElasticSupervisor(spec, policy_of(spec), discovery, dict(machine.environment), console, log, observer)
    service = RosterService(
        (),
        bytes.fromhex(identity.secret),
        on_failure=supervisor.failure_reported,
        on_progress=supervisor.progress_reported,
        log=log,
        call=call,
        elastic=limits_of(spec),
        watcher=supervisor,
        frame_limit=FRAME_LIMIT if call is None else LARGEST_FRAME,
    )
    roster = await service.start(LOOPBACK)
    # Without any name of the user's, the one host is this machine, whatever its own name leads to.
    here = frozenset() if spreads else frozenset(host.label for host in named)
    lookout = Lookout(elastic, machine.environment, console.say)
    reception = Reception(preparation, spec.ssh, identity, roster, here, spreads, lookout)
    try:
        started(supervisor)
        return await supervisor.run(service, reception)
    finally:
        await service.close()


def _check_command(spec: JobSpec, machine: Machine) -> None:
    if not _spreads(spec):
        check_command(spec.command, machine.directory, machine.environment)


def _spreads(spec: JobSpec) -> bool:
    """Say whether workers may come to be on other machines."""
    return bool(_elastic(spec).discovery or spec.hosts)


def _elastic(spec: JobSpec) -> Elastic:
    assert spec.elastic is not None
    return spec.elastic
