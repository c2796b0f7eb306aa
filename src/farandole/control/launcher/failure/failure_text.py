"""The report of a failed job, as text for the person who started it."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterable, Sequence

from farandole.control.launcher.failure.hints import hint_for
from farandole.control.launcher.failure.record import (
    WorkerRecord,
    error_line,
    find_traceback,
    how_it_ended,
    last_lines,
    shell_code,
    signal_name,
)
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.plan.model import LaunchPlan
from farandole.control.launcher.targets.access import Access
from farandole.control.roster.events import ranks

_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL)


def exit_code(first: WorkerRecord, ended_at: float) -> int:
    """Return the launcher's exit code for a job in which this worker failed first."""
    if _was_ended(first, ended_at):
        return 1  # It failed, but our SIGTERM arrived before it exited.
    return as_shell(first)


def as_shell(failed: WorkerRecord) -> int:
    """Return the exit code of a failed worker, as a shell would report it."""
    return 127 if failed.not_started else shell_code(failed.exit_code or 1)


def render_failure(
    plan: LaunchPlan,
    records: Sequence[WorkerRecord],
    first: WorkerRecord,
    ended_at: float,
    hint: str = "",
    access: Access | None = None,
) -> str:
    """Return which worker failed first and why, how the others ended, and what to do next.

    Args:
        plan: the plan of the job.
        records: the records of all workers.
        first: the record of the worker that failed first.
        ended_at: when the launcher began to end the remaining workers.
        hint: the next step, if the caller knows a better one than the failure suggests.
        access: the way to other hosts; None: ssh without options.
    """
    lines = [f"error: {_headline(plan, records, first, ended_at)}"]
    traceback = "" if first.host_lost else traceback_of(first)
    tail = [] if first.host_lost else last_lines(bytes(first.stderr_tail))
    is_shown = plan.output.is_seen_with_report and plan.output.shows(first.rank)
    if traceback and is_shown and _has_printed(first, traceback):
        lines += [f"its traceback is above, in the output of {plan.noun} {first.rank}"]
    elif traceback:
        lines += ["", textwrap.indent(traceback, "    "), ""]
    elif tail:
        lines += ["", "    no Python traceback; its last lines on standard error:"]
        lines += [f"    | {line}" for line in tail] + [""]
    others = _others(plan, records, first, ended_at)
    lines += [f"others: {'; '.join(others)}"] if others else []
    if plan.output_dir is not None:
        lines += [f"logs: {plan.output_dir}/{plan.noun}.*/stdout and stderr"]
    error = first.exception or error_line(traceback)
    lines += [f"hint: {hint or hint_for(plan, first, error, access or SshOptions())}"]
    return "\n".join(lines)


def _has_printed(record: WorkerRecord, traceback: str) -> bool:
    """Return whether a worker has written its traceback to standard error itself."""
    return bool(error := error_line(traceback)) and error in record.stderr_tail.decode("utf-8", "replace")


def traceback_of(record: WorkerRecord) -> str:
    """Return a worker's Python traceback, as it reported it or from its standard error; "" if there is none."""
    return record.traceback.rstrip() or find_traceback(bytes(record.stderr_tail))


def _headline(plan: LaunchPlan, records: Sequence[WorkerRecord], first: WorkerRecord, ended_at: float) -> str:
    host = plan.host_of(first.rank).name
    if first.host_lost:
        return f"host {host} was lost first, with {_named(plan, _lost_with(plan, records, first))}: {_why_lost(first)}"
    return f"{plan.noun} {first.rank} on host {host} failed first: {_what_happened(first, ended_at)}"


def _named(plan: LaunchPlan, numbers: Iterable[int]) -> str:
    return ranks(numbers).replace("rank", plan.noun, 1)


def _lost_with(plan: LaunchPlan, records: Sequence[WorkerRecord], first: WorkerRecord) -> set[int]:
    """Return the ranks lost in the first failure: its own and, with a lost host, all ranks on that host."""
    if not first.host_lost:
        return {first.rank}
    host = plan.host_of(first.rank)
    there = {worker.rank for worker in host.workers}
    return {record.rank for record in records if record.host_lost and record.rank in there}


def _why_lost(record: WorkerRecord) -> str:
    """Return in one line why the host counts as lost; ssh may have given the reason in several lines."""
    return "; ".join(line.strip() for line in record.host_lost.splitlines() if line.strip())


def _was_ended(record: WorkerRecord, ended_at: float) -> bool:
    return record.exit_code in _ENDED_BY_US and record.exit_time > ended_at


def _what_happened(first: WorkerRecord, ended_at: float) -> str:
    if first.not_started:
        return f"it {how_it_ended(first)}"
    if _was_ended(first, ended_at):
        return first.exception or "it reported an error"
    how = f"it {how_it_ended(first)}"
    error = first.exception or ("" if first.host_lost else error_line(traceback_of(first)))
    return f"{how} ({error})" if error else how


def _others(plan: LaunchPlan, records: Sequence[WorkerRecord], first: WorkerRecord, ended_at: float) -> list[str]:
    """Group the other workers by how they ended."""
    lost = _lost_with(plan, records, first)
    cause = f"host {plan.host_of(first.rank).name}" if first.host_lost else f"{plan.noun} {first.rank}"
    groups: dict[str, list[int]] = {}
    for record in records:
        if record.rank not in lost:
            how = _how_other_ended(plan, record, lost, cause, ended_at)
            groups.setdefault(how, []).append(record.rank)
    return [f"{_named(plan, members)} {how}" for how, members in groups.items()]


def _how_other_ended(plan: LaunchPlan, record: WorkerRecord, lost: set[int], cause: str, ended_at: float) -> str:
    how = how_it_ended(record)
    if record.host_lost:
        return f"lost with host {plan.host_of(record.rank).name} ({_why_lost(record)})"
    if not record.ended or record.exit_code == 0 or record.not_started:
        return how
    if _was_ended(record, ended_at):
        return f"ended by the launcher ({signal_name(-(record.exit_code or 0))})"
    if record.consequence_of in lost:
        return f"failed because {cause} was lost ({how})"
    if record.failure_time > ended_at:
        return f"{how} when the launcher ended the job"
    return f"failed too ({how})"
