"""Parsers for LSF's reports about jobs. Pure."""

from __future__ import annotations

import re

from farandole.control.batch_systems.system import Row, key_of
from farandole.control.jobs.status import JobState

FIELDS = "jobid stat user queue exec_host job_description pend_reason delimiter='|'"
"""The fields that bjobs prints of each job; the reason, which may contain a `|`, comes last."""
_NAMES = 7
_NOTHING = "-"
"""The text that bjobs prints for a field without a value."""

_STATES = {
    "PEND": JobState.WAITING,
    "WAIT": JobState.WAITING,
    "PSUSP": JobState.SUSPENDED,
    "PROV": JobState.STARTING,
    "RUN": JobState.RUNNING,
    "UNKWN": JobState.RUNNING,
    "USUSP": JobState.SUSPENDED,
    "SSUSP": JobState.SUSPENDED,
    "DONE": JobState.SUCCEEDED,
}


def number_of(said: str) -> str:
    """Return the number of a job that bsub has accepted; "" if bsub prints something else."""
    found = re.search(r"Job <(\d+)> is submitted", said)
    return found[1] if found is not None else ""


def read_rows(text: str) -> dict[str, Row]:
    """Return our jobs among the lines of `bjobs -noheader -o FIELDS`, by their numbers."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", _NAMES - 1)]
        key = key_of(cells[5]) if len(cells) == _NAMES else None
        if key is not None:
            number, word, user, queue, hosts, _, reason = ("" if cell == _NOTHING else cell for cell in cells)
            state = _STATES.get(word, JobState.FAILED)
            rows[number] = Row(number, state, word, _reason(state, word, reason), user, queue, hosts, key)
    return rows


def _reason(state: JobState, word: str, said: str) -> str:
    if state is JobState.SUSPENDED:
        return "LSF has suspended it for a while" if word == "SSUSP" else "until farandole resume"
    if state is JobState.WAITING and said:
        return f"waits: LSF says {said.rstrip(';')}"
    return ""
