"""Options of elastic jobs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from farandole.base.settings.table import Settings
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.start.elastic import exports_of, first_hosts, first_state, note_on_slots
from farandole.errors import SpecError


def test_defaults_of_elastic_options() -> None:
    elastic = Elastic(1, None)
    assert (elastic.discovery, elastic.timeout, elastic.spares, elastic.grace) == ("", 600.0, 0, 30.0)


@pytest.mark.parametrize(
    ("values", "grace", "search_timeout"),
    [
        ({}, 30.0, 600.0),
        ({"grace": 5.0, "timeout": 90.0}, 5.0, 90.0),
        ({"grace": 0.0, "timeout": math.inf}, 0.001, 1e6),
    ],
)
def test_workers_get_grace_and_search_timeout(values: dict[str, float], grace: float, search_timeout: float) -> None:
    told = exports_of(LaunchSpec(("x",), None, elastic=Elastic(1, None, **values)))
    settings = Settings.from_environment(dict(each.split("=") for each in told))
    assert (settings.grace, settings.roster_patience) == (grace, search_timeout)


@pytest.mark.parametrize(
    ("discovery", "timeout", "waits"),
    [("", 600.0, 30.0), ("dial:4711:/secret", 600.0, 608.0), ("dial:4711:/secret", 10.0, 30.0)],
)
def test_smaller_part_waits_until_silent_larger_part_has_ended(discovery: str, timeout: float, waits: float) -> None:
    elastic = Elastic(1, None, discovery=discovery, timeout=timeout)
    assert first_state(LaunchSpec(("x",), None, elastic=elastic)).limits.majority_timeout == waits


def on_a_machine(cores: int, **values: Any) -> tuple[int, int | None, str]:
    """Return the slots of a machine without named hosts, the workers to begin with, and the note."""
    num_proc, hosts = values.pop("num_proc", None), values.pop("hosts", ())
    spec = LaunchSpec(("x",), num_proc, hosts=hosts, elastic=Elastic(**values))
    machine = Machine("earth", cores, 0, "/", {})
    found = first_hosts(spec, machine)
    return (
        sum(host.slots or 1 for host in found),
        first_state(spec).policy.first_most,
        note_on_slots(spec, machine, found),
    )


def test_job_begins_with_requested_workers() -> None:
    slots, first, note = on_a_machine(2, num_proc=3, min_size=2, max_size=4)
    assert (slots, first) == (3, 3)
    assert note.startswith(
        "no hosts are given, so this machine has a slot for each core, and at least -np: 3 slots. -H localhost:4"
    )
    assert on_a_machine(8, num_proc=3, min_size=2, max_size=4) == (4, 3, "")
    # Nobody has asked for all cores.
    assert on_a_machine(8, num_proc=3, min_size=2, max_size=None) == (3, 3, "")
    assert on_a_machine(8, min_size=1, max_size=4) == (4, None, "")
    assert on_a_machine(2, min_size=1, max_size=4)[:2] == (2, None)
    assert on_a_machine(2, num_proc=2, min_size=1, max_size=2, spares=1) == (3, 2, "")
    assert on_a_machine(2, num_proc=3, min_size=1, max_size=4, fills_at_once=True)[:2] == (3, None)
    slots, _, note = on_a_machine(2, num_proc=2, min_size=1, max_size=4, hosts=(Host("h1", 2), Host("h2", 1)))
    assert (slots, note) == (3, "the hosts have 3 slots: the job stays below --max-np 4")


@pytest.mark.parametrize("discovery", ["", "script:./hosts.sh", "file:/etc/hosts.txt", "dns:workers:4", "dns:workers"])
def test_kinds_of_host_discovery_are_parsed(discovery: str) -> None:
    assert Elastic(1, 2, discovery=discovery).discovery == discovery


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"min_size": 0}, "cannot run with 0 workers"),
        ({"min_size": 3, "max_size": 2}, "the maximum of 2 workers is below the minimum of 3"),
        ({"slots": 0}, "no room for a worker"),
        ({"timeout": 0}, "no time to wait"),
        ({"timeout": float("nan")}, "no time to wait"),
        ({"reset_limit": -1}, "is negative"),
        ({"cooldown": (5, 2)}, "a cooldown of 5 to 2 s"),
        ({"cooldown": (0, 2)}, "a cooldown of 0 to 2 s"),
        ({"spares": -1}, "-1 is not a number of spare workers"),
        ({"grace": -1}, "is not valid"),
        ({"preemption_interval": 0}, "cannot be checked every 0 s"),
        ({"preemption_interval": float("nan")}, "cannot be checked every nan s"),
        ({"discovery": "script:"}, "'script:' is not a valid host discovery"),
        ({"discovery": "hosts.sh"}, "'hosts.sh' is not a valid host discovery"),
    ],
)
def test_invalid_options_are_refused_with_hint(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        Elastic(**{"min_size": 1, "max_size": None, **values})
    assert words in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("num_proc", [1, 5])
def test_size_of_first_world_is_within_limits(num_proc: int) -> None:
    with pytest.raises(SpecError, match="at least 2 and at most 4 workers"):
        LaunchSpec(("python",), num_proc, elastic=Elastic(2, 4))


def test_the_first_world_may_have_as_many_workers_as_there_are_slots() -> None:
    assert LaunchSpec(("python",), None, elastic=Elastic(2, 4)).num_proc is None
    assert LaunchSpec(("python",), 9, elastic=Elastic(2, None)).num_proc == 9
