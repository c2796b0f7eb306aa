"""Error files in torchelastic's schema: the ones that workers write, and the ones in the output directory.

    {"message": {"message": "ValueError: boom",
                 "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"},
                 "errorCode": 1}}

A worker whose script uses PyTorch's `@record` writes such a file to the path in TORCHELASTIC_ERROR_FILE (see
`farandole.control.agent.worker_error_file`); in older files `message` is a plain text. Schema:
torch/distributed/elastic/ multiprocessing/errors. The error code is an exit code, or minus the number of a signal.
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
    """The contents of a worker's own error file."""

    exception: str
    """One line, such as `ValueError: boom`."""
    traceback: str


def parse(content: bytes) -> WorkerError | None:
    """Parse an error file that a worker wrote; return None if it is empty, truncated or something else.

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
    """Record a worker's own error file; an error that the worker reported to the roster takes precedence."""
    record.error_file = content
    error = parse(content)
    if error is not None and record.report_time is None:
        record.exception, record.traceback = error


def render(record: WorkerRecord, failed_at: float) -> str:
    """Return the error file of a failed worker: its own with the error code added, or one made from its record.

    Args:
        record: the record of the worker.
        failed_at: the time of the failure in seconds since 1970.
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
    """Write `error.json` for every worker that failed by itself, but not for workers that the launcher ended.

    Args:
        folders: the folder of each rank's files.
        records: the records of all workers.
        ended_at: when the launcher began to end the remaining workers, in seconds on its monotonic clock.

    Returns:
        The reason why a file could not be written; "" if all were.
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
