"""Error files in torchelastic's schema, read and written."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from farandole.control.launcher.failure.error_file import WorkerError, learn, parse, render, write_error_files
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.output.logs import rank_folder

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\nValueError: boom\n'
# As torch.distributed.elastic.multiprocessing.errors.record writes it.
BY_RECORD = {
    "message": {
        "message": "ValueError: boom\nwith more",
        "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "1700000000"},
    }
}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (json.dumps(BY_RECORD).encode(), WorkerError("ValueError: boom", TRACEBACK)),
        (b'{"message": "as it was once", "timestamp": 1}', WorkerError("as it was once", "")),
        (b'{"message": {"message": "x", "extraInfo": null}}', WorkerError("x", "")),
        (b'{"message": {"message": "x", "extraInfo": {"py_callstack": 3}}}', WorkerError("x", "")),
        (b"", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"message": null}', None),
        (b'{"message": {"message": "  "}}', None),
        (b"[" * 100_000, None),
    ],
)
def test_error_files_of_workers_are_read(content: bytes, error: WorkerError | None) -> None:
    assert parse(content) == error


def test_error_file_is_used_without_report_to_roster() -> None:
    silent = WorkerRecord(0)
    learn(silent, json.dumps(BY_RECORD).encode())
    assert (silent.exception, silent.traceback) == ("ValueError: boom", TRACEBACK)
    told = WorkerRecord(0, report_time=1.0, exception="KeyError: 1", traceback="its own words")
    learn(told, json.dumps(BY_RECORD).encode())
    assert (told.exception, told.traceback) == ("KeyError: 1", "its own words")
    learn(silent, b"rubbish")
    assert silent.exception == "ValueError: boom"


def test_an_exception() -> None:
    record = WorkerRecord(3, exit_code=1, exception="ValueError: boom", traceback=TRACEBACK)
    assert json.loads(render(record, 1700000000.9)) == {
        "message": {
            "message": "ValueError: boom",
            "extraInfo": {"py_callstack": TRACEBACK.rstrip(), "timestamp": "1700000000"},
            "errorCode": 1,
        }
    }


@pytest.mark.parametrize(
    ("record", "message", "code"),
    [
        (WorkerRecord(3, exit_code=-signal.SIGSEGV), "rank 3 was killed by SIGSEGV", -11),
        (WorkerRecord(3, not_started="no memory"), "rank 3 could not be started: no memory", None),
        (WorkerRecord(3, host_lost="no sign of life"), "rank 3 was lost with its host: no sign of life", None),
    ],
)
def test_other_ends(record: WorkerRecord, message: str, code: int | None) -> None:
    written = json.loads(render(record, 1.0))["message"]
    assert written["message"] == message
    assert written["extraInfo"] == {"py_callstack": "", "timestamp": "1"}
    assert written.get("errorCode") == code


def test_error_file_of_worker_is_kept_with_exit_code() -> None:
    record = WorkerRecord(0, exit_code=7)
    learn(record, json.dumps(BY_RECORD).encode())
    assert json.loads(render(record, 1.0)) == {"message": {**BY_RECORD["message"], "errorCode": 7}}


def test_files_are_written_for_original_failures_only(tmp_path: Path) -> None:
    now = time.monotonic()
    records = [WorkerRecord(rank, exit_code=0, exit_time=now) for rank in range(11)]
    records[3] = WorkerRecord(3, exit_code=1, exit_time=now, exception="ValueError: boom")
    records[4] = WorkerRecord(4, exit_code=-signal.SIGTERM, exit_time=now + 2)
    folders = {rank: rank_folder(tmp_path, rank, len(records)) for rank in range(len(records))}
    assert write_error_files(folders, records, now + 1) == ""
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")] == ["rank.03/error.json"]
    told = json.loads((tmp_path / "rank.03" / "error.json").read_text())["message"]
    assert abs(int(told["extraInfo"]["timestamp"]) - time.time()) < 60


def test_failed_write_is_reported(tmp_path: Path) -> None:
    (tmp_path / "rank.0").write_text("in the way")
    trouble = write_error_files({0: tmp_path / "rank.0"}, [WorkerRecord(0, exit_code=1)], 1.0)
    assert trouble == f"{tmp_path}/rank.0/error.json could not be written: File exists"


def test_torch_reads_our_files(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    write_error_files({0: tmp_path / "rank.0"}, [WorkerRecord(0, exit_code=1, exception="ValueError: boom")], 1.0)
    failure = errors.ProcessFailure(0, 4711, 1, str(tmp_path / "rank.0" / "error.json"))
    assert failure.message["message"] == "ValueError: boom" and failure.timestamp > 0


def test_files_of_torch_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0.json"))
    try:
        raise KeyError("missing")
    except KeyError as error:
        errors.ErrorHandler().record_exception(error)
    told = parse((tmp_path / "0.json").read_bytes())
    assert told is not None and told.exception == "KeyError: 'missing'"
    assert told.traceback.startswith("Traceback (most recent call last):")
