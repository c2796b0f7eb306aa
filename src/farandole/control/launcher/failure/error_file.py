"""Error files in torchelastic's schema: the ones that workers wrote themselves, and the ones that are left in the logs.

    {"message": {"message": "ValueError: boom",
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"},
                 "errorCode": 1}}

A worker whose script has PyTorch's `@record` writes such a file where TORCHELASTIC_ERROR_FILE says (see
`control.agent.worker_error_file`); older ones have a text as their only `message`. Schema: torch/distributed/elastic/
multiprocessing/errors. The error code is an exit code, or minus the number of a signal.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farandole.control.launcher.failure.failure_text import traceback_of
from farandole.control.launcher.failure.record import WorkerRecord, how_it_ended

FILE_NAME = "error.json"


class WorkerError(NamedTuple):
    """What a worker wrote about its failure."""

    exception: str
    """One line, such as `ValueError: boom`."""
    traceback: str


def parse(content: bytes) -> WorkerError | None:
    """Read an error file that a worker wrote; None if it is empty, cut or something else.

    Example:
        >>> parse(b'{"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Trace"}}}')
        WorkerError(exception='ValueError: boom', traceback='Trace')
    """
    message = _load(content).get("message")
    details = message if isinstance(message, dict) else {"message": message}
    text, extra = details.get("message"), details.get("extraInfo")
    traceback = extra.get("py_callstack") if isinstance(extra, dict) else None
    if not isinstance(text, str) or not text.strip():
        return None
    return WorkerError(text.strip().splitlines()[0], traceback if isinstance(traceback, str) else "")


def learn(record: WorkerRecord, content: bytes) -> None:
    """Record a worker's own error file; what it told the roster itself counts more."""
    record.error_file = content
    error = parse(content)
    if error is not None and record.report_time is None:
        record.exception, record.traceback = error


def render(record: WorkerRecord, failed_at: float) -> str:
    """Return the error file of a worker that failed: its own with the error code, or one of what is known about it.

    Args:
        record: what the launcher heard about it.
        failed_at: in seconds since 1970.
    """
    message = _load(record.error_file).get("message")
    if not isinstance(message, dict):
        message = {
            "message": record.exception or f"rank {record.rank} {how_it_ended(record)}",
            "extraInfo": {"py_callstack": traceback_of(record), "timestamp": str(int(failed_at))},
        }
    code = {} if record.exit_code is None else {"errorCode": record.exit_code}
    return json.dumps({"message": {**message, **code}}, indent=2) + "\n"


def write_error_files(folders: Mapping[int, Path], records: Sequence[WorkerRecord], ended_at: float) -> str:
    """Write `error.json` for every worker that failed by itself, not for those that were ended.

    Args:
        folders: by rank, where the files of each are.
        records: of all workers.
        ended_at: when the launcher began to end the workers that were left, on its monotonic clock.

    Returns:
        Why a file could not be written; "" when all were.
    """
    since_1970 = time.time() - time.monotonic()
    trouble = ""
    for record in records:
        if not record.failed_by_itself(ended_at):
            continue
        folder = folders[record.rank]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / FILE_NAME).write_text(render(record, since_1970 + record.failure_time), encoding="utf-8")
        except OSError as error:
            trouble = f"{folder / FILE_NAME} could not be written: {error.strerror}"
    return trouble


def _load(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
