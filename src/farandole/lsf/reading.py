"""What LSF says about jobs. Pure."""

from __future__ import annotations

import re

from farandole.batch_systems.system import MARK, Row
from farandole.jobs.errors import Refused
from farandole.jobs.status import JobState

FIELDS = "jobid stat user queue exec_host job_description pend_reason delimiter='|'"
"""What bjobs is asked to print of each job; the reason, which may have a `|`, comes last."""
_NAMES = 7
_NOTHING = "-"
"""What bjobs prints of a field that has no value."""

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
    """Return the number of a job that bsub has taken.

    Raises:
        Refused: bsub says something else.
    """
    found = re.search(r"Job <(\d+)> is submitted", said)
    if found is None:
        raise Refused(f"bsub says {said.strip()!r}, and no number of a job", "see what it asks for: bsub by hand")
    return found[1]


def read_rows(text: str) -> dict[str, Row]:
    """Return our jobs among the lines of `bjobs -noheader -o FIELDS`, by their numbers."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|", _NAMES - 1)]
        if len(cells) == _NAMES and cells[5] == MARK:
            number, word, user, queue, hosts, _, reason = ("" if cell == _NOTHING else cell for cell in cells)
            state = _STATES.get(word, JobState.FAILED)
            rows[number] = Row(number, state, word, _reason(state, word, reason), user, queue, hosts)
    return rows


def _reason(state: JobState, word: str, said: str) -> str:
    if state is JobState.SUSPENDED:
        return "LSF has suspended it for a while" if word == "SSUSP" else "until farandole resume"
    if state is JobState.WAITING and said:
        return f"waits: LSF says {said.rstrip(';')}"
    return ""
