"""The plan as text for people, and as JSON for programs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from farandole.base.display.wording import count
from farandole.control.launcher.plan.environment import PLACE_PREFIXES
from farandole.control.launcher.plan.model import UNKNOWN, HostPlan, LaunchPlan


def render(plan: LaunchPlan) -> str:
    """Return the whole plan as text for people, without secrets."""
    lines = [
        f"{count(plan.size, 'worker')} on {count(len(plan.hosts), 'host')}",
        "",
        f"command        {shlex.join(plan.command)}",
        f"directory      {plan.directory}",
        f"start timeout  {plan.start_timeout:g} s",
        f"output         {plan.output.describe(plan.output_dir)}",
    ]
    lines += [f"note           {note}" for note in dict.fromkeys((*plan.notes, *plan.details))]
    lines += ["", "every worker gets the launcher's environment, and"]
    lines += variable_lines(plan.environment, plan.private)
    for host in plan.hosts:
        lines += ["", *_render_host(plan, host)]
    return "\n".join(lines) + "\n"


def _render_host(plan: LaunchPlan, host: HostPlan) -> list[str]:
    cores = count(host.cores, "core") if host.cores else "cores not yet known"
    where = f" from {host.started_from}" if host.started_from else ""
    how = f"started{where} by {host.started_by}" if host.started_by else "which dials this launcher"
    lines = [f"host {host.name} ({cores}), {how}"]
    if host.directory != plan.directory:
        lines += [f"  directory {host.directory}"]
    lines += [f"  network {name}: {' '.join(addresses)}" for name, addresses in host.networks]
    lines += variable_lines(host.environment, plan.private)
    for worker in host.workers:
        lines += [f"  {plan.noun} {worker.rank}"]
        lines += [f"    {family}" for family in _families(worker.environment, plan.private)]
    return lines


def variable_lines(environment: Mapping[str, str], private: frozenset[str]) -> list[str]:
    """Return variables as lines for people, without the values of private ones."""
    return [f"  {name}={_shown(name, value, private)}" for name, value in environment.items()]


def as_json(plan: LaunchPlan) -> str:
    """Return the whole plan as JSON for programs, without secrets."""

    def plain(environment: Mapping[str, str]) -> dict[str, str]:
        return {name: "***" if name in plan.private else value for name, value in environment.items()}

    hosts = [
        {
            "name": host.name,
            "local": host.local,
            "cores": host.cores or None,
            "started_by": host.started_by,
            "started_from": host.started_from or None,
            "command": host.command,
            "directory": host.directory,
            "networks": dict(host.networks),
            "environment": plain(host.environment),
            "workers": [{"rank": each.rank, "environment": plain(each.environment)} for each in host.workers],
        }
        for host in plan.hosts
    ]
    whole = {
        "size": plan.size,
        "command": plan.command,
        "directory": plan.directory,
        "start_timeout": plan.start_timeout,
        "output_dir": plan.output_dir,
        "notes": plan.notes,
        "environment": plain(plan.environment),
        "hosts": hosts,
    }
    return json.dumps(whole, indent=2) + "\n"


def _families(environment: Mapping[str, str], private: frozenset[str]) -> list[str]:
    """Format variables, in one line for each prefix."""
    families: dict[str, list[str]] = {}
    for name, value in environment.items():
        prefix = next((prefix for prefix in PLACE_PREFIXES if name.startswith(prefix)), "")
        families.setdefault(prefix, []).append(f"{name}={_shown(name, value, private)}")
    return [" ".join(family) for family in families.values()]


def _shown(name: str, value: str, private: frozenset[str]) -> str:
    if name in private:
        return "***"
    return value if UNKNOWN in value else shlex.quote(value)
