"""What to do next about a failure: a sentence for each kind of error, which can be followed as it stands."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence

from farandole.control.agent.command_check import python_script
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.plan.model import Plan
from farandole.control.launcher.targets.ssh import by_hand

# As the engine says it when a worker has ended without an error and others still needed it.
_OF_A_RANK_THAT_LEFT = "has shut down, so collectives"
_SAME_CALLS = (
    "let all ranks make the same calls in the same order, with the same types and shapes; look for what depends on the "
    "rank"
)

# The error's line, and what to do; `{python}`, `{script}`, `{directory}` and `{where}` are those of the worker.
_BY_ERROR = (
    (r"(Syntax|Indentation|Tab)Error\b", "correct that line; {python} -m py_compile {script} checks it alone"),
    (
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        "is it installed in the environment of {python!r}, which the workers ran? try: {python} -c 'import {module}'",
    ),
    (r"ImportError\b", "is it installed in the environment of {python!r}, which the workers ran?"),
    (
        _OF_A_RANK_THAT_LEFT,
        "do all ranks make the same number of steps? hvd.join() at the end is for ranks that have fewer",
    ),
    (r"errors\.MismatchError\b", "the message says what each rank sent: " + _SAME_CALLS),
    (
        r"errors\.StalledError\b",
        'rank 0 printed, below "What the missing ranks do", the line at which each of them is: ' + _SAME_CALLS,
    ),
    (r"errors\.NotInitializedError\b", "call hvd.init() once, before that line"),
    (
        r"errors\.InvalidRequestError\b",
        "that call is wrong whatever other ranks do; help() of the function has its rules",
    ),
    (r"errors\.SettingError\b", "farandole config shows where the value comes from, and which values are allowed"),
    (r"errors\.TimelineError\b", "name a file that can be written on rank 0's host: --timeline FILE"),
    (r"errors\.CheckpointError\b", "name another directory to begin anew: --checkpoint-dir DIR"),
    (r"errors\.LibraryError\b", "farandole doctor shows which library is loaded, and what it lacks"),
    (
        r"errors\.StateLostError\b",
        "with --checkpoint-dir DIR, the next run goes on from the last checkpoint",
    ),
    (r"errors\.StartError\b", "farandole test, with the same -np and hosts, tries every connection between workers"),
    (
        r"CUDA out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED",
        "a smaller batch needs less memory of the GPU; nvidia-smi shows what else is in it",
    ),
    (
        r"(FileNotFound|NotADirectory|IsADirectory|Permission)Error\b",
        "workers run in {directory}, as this user; is the path right from there, on {where}?",
    ),
)


def hint_for(plan: Plan, first: WorkerRecord, error: str, ssh: SshOptions) -> str:
    """Return what to do next about the failure of the worker that failed first.

    Args:
        plan: of the job.
        first: what is known of that worker.
        error: the line that names its exception; "": none is known.
        ssh: how other hosts are reached.
    """
    host = plan.host_of(first.rank)
    if first.host_lost:
        up = by_hand(Host(host.name), ssh, "uptime")
        return f"is {host.name} up, and its network? Try: ping {host.name}; {up}. It may have restarted, or be stuck"
    if first.not_started:
        return f"try the command alone: {plan.command[0]}"
    if first.out_of_memory:
        return "a smaller batch or fewer workers on this host need less; or give the job more memory"
    if first.exit_code == -signal.SIGKILL:
        return (
            "the launcher did not send this SIGKILL; often it is the kernel, out of memory. Check with: "
            "dmesg -T | grep -i -E 'out of memory|killed process'. A smaller batch or fewer workers need less."
        )
    known = hint_by_error(error, plan.command, plan.directory, f"host {host.name}") if error else ""
    return known or _by_end(plan, first, bool(error))


def hint_by_error(error: str, command: Sequence[str], directory: str, where: str) -> str:
    """Return what to do about an error; "" for one of which nothing is known.

    Args:
        error: the line that names it.
        command: that the worker ran.
        directory: in which it ran.
        where: its host, in words.
    """
    words = {
        "python": command[0],
        "script": python_script(command) or "FILE",
        "directory": directory,
        "where": where,
    }
    for pattern, hint in _BY_ERROR:
        if found := re.search(pattern, error):
            return hint.format(**words, **found.groupdict())
    return ""


def _by_end(plan: Plan, first: WorkerRecord, has_error: bool) -> str:
    if has_error:
        alone = "-np 1" if plan.size > 1 else shlex.join(plan.command)
        keep = "" if plan.output_dir else "; --output-dir DIR keeps the whole output of every rank"
        return f"see whether it fails alone as well: {alone}{keep}"
    if first.exit_code is not None and first.exit_code < 0:
        return "to see where each thread was, add -x PYTHONFAULTHANDLER=1 before the command"
    if first.exit_code == 2 and re.search(rb"(?m)^usage: ", first.stderr_tail):
        return f"it refused its arguments: {shlex.join([*plan.command[:2], '--help'])} lists them"
    return f"it chose this exit code by itself; look for exit({first.exit_code}) in what the command runs"
