"""Hints about what to do after a failure: one sentence for each kind of error, which can be followed literally."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence

from farandole.control.agent.command_check import python_script
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.plan.model import LaunchPlan
from farandole.control.launcher.targets.access import Access, hint_after_loss

# The engine's message when a worker has ended without an error while others still needed it.
_OF_A_RANK_THAT_LEFT = "has shut down, so collectives"
_SAME_CALLS = (
    "let all ranks make the same calls in the same order, with the same types and shapes; look for anything that "
    "depends on the rank"
)

# In the command of workers that run a function.
_FUNCTION = "farandole.control.launcher.call"

# A pattern for the error's line, and the hint; `{python}`, `{script}`, `{directory}` and `{where}` are the worker's.
_BY_ERROR = (
    (r"(Syntax|Indentation|Tab)Error\b", "correct that line; {python} -m py_compile {script} checks it alone"),
    (
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        "check that it is installed for {python!r}, which the workers used: {python} -c 'import {module}'",
    ),
    (r"ImportError\b", "check that it is installed for {python!r}, which the workers used"),
    (
        _OF_A_RANK_THAT_LEFT,
        "check that all ranks make the same number of steps; ranks with fewer steps call hvd.join() at the end",
    ),
    (r"errors\.MismatchError\b", "the message says what each rank sent: " + _SAME_CALLS),
    (
        r"errors\.StalledError\b",
        'rank 0 printed, below "What the missing ranks do", the line at which each of them is: ' + _SAME_CALLS,
    ),
    (r"errors\.NotInitializedError\b", "call hvd.init() once, before that line"),
    (
        r"errors\.InvalidRequestError\b",
        "that call is invalid on any rank; help() of the function explains its arguments",
    ),
    (r"errors\.SettingError\b", "farandole config shows where the value comes from, and which values are allowed"),
    (r"errors\.TimelineError\b", "use a file that is writable on rank 0's host: --timeline FILE"),
    (r"errors\.CheckpointError\b", "use another directory to start afresh: --checkpoint-dir DIR"),
    (r"errors\.LibraryError\b", "farandole doctor shows which library is loaded, and what it is missing"),
    (
        r"errors\.StateLostError\b",
        "with --checkpoint-dir DIR, the next run continues from the last checkpoint",
    ),
    (
        r"errors\.StartError: the system cannot create an arena of \d+ bytes: File too large",
        "a limit on the size of files forbids it: ulimit -f unlimited, in the shell that starts the job, removes it",
    ),
    (r"errors\.StartError\b", "farandole test, with the same -np and hosts, checks every connection between workers"),
    (
        r"CUDA out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED",
        "a smaller batch needs less GPU memory; nvidia-smi shows what else uses the GPU",
    ),
    (
        r"No CUDA GPUs are available|no CUDA-capable device|NVIDIA driver on your system",
        "farandole doctor, on {where}, says what is missing: a GPU, its driver, or a newer one",
    ),
    (
        r"Duplicate GPU detected|invalid device ordinal",
        "use one GPU for each worker of a host: as many slots as GPUs, and torch.cuda.set_device(hvd.local_rank())",
    ),
    (
        r"NCCL error|\bNCCL: ",
        "add -x NCCL_DEBUG=INFO --output-dir logs; then run farandole doctor --nccl-log logs/rank.*/std*",
    ),
    (
        r"(FileNotFound|NotADirectory|IsADirectory|Permission)Error\b",
        "workers run in {directory}, as this user: check that the path is right from there, on {where}",
    ),
)


def hint_for(plan: LaunchPlan, first: WorkerRecord, error: str, access: Access) -> str:
    """Return the hint for the worker that failed first.

    Args:
        plan: the plan of the job.
        first: the record of that worker.
        error: the line that names its exception; "" if none is known.
        access: the way to other hosts.
    """
    host = plan.host_of(first.rank)
    if first.host_lost:
        return hint_after_loss(host.name, access)
    if first.not_started:
        return f"try the command by itself: {plan.command[0]}"
    if first.out_of_memory:
        return "use a smaller batch or fewer workers on this host, or give the job more memory"
    if first.exit_code == -signal.SIGKILL:
        return (
            "the launcher did not send this SIGKILL; often the kernel sends it when memory runs out. Check with: "
            "dmesg -T | grep -i -E 'out of memory|killed process'. A smaller batch or fewer workers need less memory."
        )
    known = hint_by_error(error, plan.command, plan.directory, f"host {host.name}") if error else ""
    return known or _by_end(plan, first, bool(error))


def hint_by_error(error: str, command: Sequence[str], directory: str, where: str) -> str:
    """Return the hint for an error; "" if there is none.

    Args:
        error: the line that names the error.
        command: the command that the worker ran.
        directory: the directory in which it ran.
        where: a name for its host in the hint.
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


def _of_function(first: WorkerRecord, has_error: bool) -> str:
    """Return the hint about a worker that ran a function of the caller's, who has given no options."""
    if has_error:
        return "check whether the function fails with one worker, too"
    if first.exit_code is not None and first.exit_code < 0:
        return "to see where each thread was, set PYTHONFAULTHANDLER=1 in the environment of the workers"
    return f"the function chose this exit code itself; look for exit({first.exit_code}) in it"


def _by_end(plan: LaunchPlan, first: WorkerRecord, has_error: bool) -> str:
    if _FUNCTION in plan.command:
        return _of_function(first, has_error)
    if has_error:
        alone = "-np 1" if plan.size > 1 else shlex.join(plan.command)
        keep = "" if plan.output_dir else "; --output-dir DIR saves the whole output of every rank"
        return f"check whether it also fails by itself: {alone}{keep}"
    if first.exit_code is not None and first.exit_code < 0:
        return "to see where each thread was, add -x PYTHONFAULTHANDLER=1 before the command"
    if first.exit_code == 2 and re.search(rb"(?m)^usage: ", first.stderr_tail):
        return f"it rejected its arguments: {shlex.join([*plan.command[:2], '--help'])} lists them"
    # What `python -m NAME` prints without a traceback.
    missing = re.search(rb"(?m): No module named '?(?P<module>[\w.]+)'?$", first.stderr_tail)
    if missing is not None and "-m" in plan.command:
        python = plan.command[0]
        module = missing["module"].decode()
        return f"check that it is installed for {python!r}, which the workers used: {python} -c 'import {module}'"
    return f"the program itself chose this exit code; look for exit({first.exit_code}) in it"
