"""Case k: starting a job on several hosts, and on many."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.cases.base import Case
from benchmarks.commands import TIME, seconds_to_end, time_command, time_rounds, time_start
from benchmarks.conductor import Conductor, Row
from benchmarks.hosts import BedError, bed_of
from benchmarks.launcher_memory import NOTE
from benchmarks.scope import Scope

_HOSTS, _WORKERS_ON_EACH = 3, 2
_WORKERS = _HOSTS * _WORKERS_ON_EACH
_SIMULATED_HOSTS = 256
_SIMULATED_SECONDS = 300.0
_SHARE, _MEMORY = "python and imports", "launcher's memory"

_IMPORTS = (sys.executable, "-c", "from farandole.worker.core import basics, buffers, dtype")
# Hosts of the bed share the machine's cores, and so do their workers when they import.
_AT_ONCE = (
    'count=$1; shift; for worker in $(seq "$count"); do "$@" & all="$all $!"; done; '
    'for worker in $all; do wait "$worker" || exit; done'
)
# Its name contains ssh, so the launcher passes ssh's options, which the script drops.
_SIMULATED_SSH = """\
#!/bin/sh
while getopts i:o:p:T _; do :; done
shift "$OPTIND"
exec sh -c "$*"
"""


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    at_once = ("sh", "-c", _AT_ONCE, "sh", str(_WORKERS), *_IMPORTS)
    alone = [
        time_command(conductor, "python alone", (sys.executable, "-c", "pass")),
        time_command(conductor, "python and the imports of a worker", _IMPORTS),
        time_command(conductor, f"python and the imports of {_WORKERS} workers at once", at_once),
    ]
    return [*alone, _start_on_hosts(conductor, alone[-1]), *_start_on_simulated_hosts(conductor, scope)]


def _start_on_hosts(conductor: Conductor, imports: Row) -> Row:
    """Time a job's start from the first of several hosts, and note the share of it that imports alone take."""
    what = f"first allreduce on {_HOSTS} hosts x {_WORKERS_ON_EACH} workers"
    try:
        with bed_of(_HOSTS, conductor.folder) as bed:
            hosts = ",".join(f"{address}:{_WORKERS_ON_EACH}" for address in bed.addresses)
            launcher = (*bed.enter(0), sys.executable, "-m", "farandole", "run", "--ssh", str(bed.agent), "-H", hosts)
            worker = (sys.executable, "-m", "benchmarks.first_allreduce", "farandole", str(_WORKERS))
            row = time_start(conductor, what, (*launcher, *worker), workers=_WORKERS)
    except BedError as error:
        conductor.say(f"    skipped: {error}")
        return Row({"what": what}, notes={TIME: str(error)})
    alone, whole = imports.median(TIME), row.median(TIME)
    if alone and whole:
        row.notes[_SHARE] = f"{alone / whole:.0%}"
    return row


def _start_on_simulated_hosts(conductor: Conductor, scope: Scope) -> list[Row]:
    ssh = conductor.folder / "simulated-ssh"
    ssh.write_text(_SIMULATED_SSH)
    ssh.chmod(0o700)
    return [
        _run_to_end(
            conductor,
            f"`true` on {hosts} simulated hosts, {how}",
            ("--ssh", str(ssh), "-H", f"n[001-{hosts:03}]:1", *flags),
        )
        for hosts in scope.choose_worlds((_SIMULATED_HOSTS,))
        for how, flags in (("with pre-flight", ()), ("--no-preflight", ("--no-preflight",)))
    ]


def _run_to_end(conductor: Conductor, what: str, options: tuple[str, ...]) -> Row:
    """Time a job that does nothing, once, and note its launcher's peak of memory."""
    command = (sys.executable, "-m", "benchmarks.launcher_memory", "run", *options, "true")
    noted = []

    def take(folder: Path) -> float:
        seconds = seconds_to_end(command, folder, limit=_SIMULATED_SECONDS)
        noted.append(int((folder / NOTE).read_text()))
        return seconds

    row = time_rounds(conductor, what, take, rounds=1)
    if noted:
        row.notes[_MEMORY] = f"{noted[0] / 1024:.0f} MB"
    return row


LAUNCHING = Case(
    letter="k",
    title="from the launcher's command to the first allreduce on several hosts, and to the end of a job on many",
    keys=("what",),
    run=_measure,
)
