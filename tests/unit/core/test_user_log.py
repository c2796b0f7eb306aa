"""Where a worker's own words go: standard error, and the logger `farandole` where the program has a handler."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from farandole.worker.core.user_log import LOGGER, log_as_json, log_event, tell_user


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(LOGGER)
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_a_handler_of_the_logger_gets_the_words_instead_of_standard_error(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = Kept()
    logger.addHandler(handler)
    tell_user("warning", "it is slow", 3)
    (record,) = handler.records
    assert (record.name, record.levelname, record.getMessage()) == ("farandole", "WARNING", "it is slow")
    assert record.rank == 3  # type: ignore[attr-defined]
    assert capsys.readouterr().err == ""


def test_a_handler_above_that_keeps_records_elsewhere_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    handler = Kept()
    logging.getLogger().addHandler(handler)
    try:
        tell_user("warning", "it is slow", 3)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in handler.records] == ["it is slow"]
    assert capsys.readouterr().err == "farandole [rank 3] warning: it is slow\n"


def test_a_handler_above_that_shows_the_words_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        tell_user("warning", "it is slow")
        tell_user("info", "found a speed")  # The root logger's level keeps it back: it is shown as ever.
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err == "it is slow\nfarandole [rank 0] info: found a speed\n"


def test_events_are_for_the_logger_only(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    assert not log_event("info", "rank 0 of 2")
    assert capsys.readouterr().err == ""
    assert any(type(handler) is logging.NullHandler for handler in logger.handlers)


def test_json_lines(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log_as_json("INFO")
    log_as_json("INFO")  # As when init() is called again: the lines do not double.
    tell_user("info", 'a "quoted"\nline', 2)
    log_event("debug", "not from this level on")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["level"], told["rank"], told["message"]) == ("info", 2, 'a "quoted"\nline')
    assert told["time"].endswith("Z")


def test_a_program_without_logging_does_not_load_it() -> None:
    script = (
        "import sys; from farandole.worker.core.user_log import tell_user; tell_user('warning', 'w'); "
        "assert 'logging' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "farandole [rank 0] warning: w\n")
