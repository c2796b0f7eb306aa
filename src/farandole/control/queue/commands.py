"""The words after `farandole run` that run a job of the queue on the slots that it has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from farandole.control.queue.model import QueueJob
from farandole.control.scheduler.handover import count


def command_of(job: QueueJob, hosts: Path, options: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the words.

    Args:
        job: one with slots.
        hosts: the file of its hosts, if it is elastic.
        options: of the queue, for all jobs, such as how other hosts are reached.
    """
    spec, slots = job.spec, job.slots
    words = ["--no-status", "--color", "never", *options]
    if spec.is_elastic:
        words += ["-np", str(count(slots)), "--min-np", str(spec.workers.min), "--max-np", str(spec.workers.max)]
        words += ["--hosts-from", f"file:{hosts}", "--job", local_name(job), "--grace", f"{spec.grace:.15g}"]
        if spec.checkpoint:
            words += ["--checkpoint-dir", spec.checkpoint, "--resume", "auto"]
    else:
        words += ["-np", str(count(slots)), "-H", ",".join(f"{_bracketed(host)}:{n}" for host, n in slots.items())]
        words += ["--end-grace", f"{spec.grace:.15g}"]
    for name, value in spec.environment.items():
        words += ["-x", f"{name}={value}"]
    if spec.command[0].startswith("-"):
        words.append("--")  # It would be taken for an option: of another number of workers, or of other hosts.
    return (*words, *spec.command)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def local_name(job: QueueJob) -> str:
    """Return the name under which the job's own daemon is found by its user."""
    return f"{job.name}.{job.attempt}"


def is_attempt(local: str, name: str) -> bool:
    """Return whether a local name is that of an attempt of a job of the queue.

    Example:
        >>> is_attempt("resnet.2", "resnet"), is_attempt("resnet-2", "resnet")
        (True, False)
    """
    job, dot, attempt = local.rpartition(".")
    return bool(dot) and job == name and attempt.isdecimal()
