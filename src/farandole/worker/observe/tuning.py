"""Reports autotuning: a table of its samples, a message when it has ended, and a file for the next job."""

from __future__ import annotations

import contextlib
import csv
import threading
from typing import Any, TextIO

from farandole.base.settings.table import Settings
from farandole.base.wire.rendezvous import World
from farandole.worker.core import tuning_files
from farandole.worker.core.engine import Engine
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user

# Seconds between rank 0's checks for a new sample.
LOOK_SECONDS = 0.5
JOIN_SECONDS = 10.0


class TuningWatch:
    """Watches autotuning in a separate thread until it, or the world, has ended."""

    def __init__(self, session: Session) -> None:
        """Start the thread; the log is opened, and so emptied, at once."""
        self._engine: Engine = session.engine
        self._settings: Settings = session.settings
        self._world: World = session.world
        self._log = self._open_log()
        self._headed = False
        self._logged = 0
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farandole-tuning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Check once more, and end."""
        self._finish.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._look():
            self._finish.wait(LOOK_SECONDS)
        self._close_log()

    def _look(self) -> bool:
        """Report new samples; return whether there will be no more."""
        finished = self._finish.is_set()
        report = self._engine.tuning()
        if not report["on"]:
            return finished  # Its world has not begun yet.
        try:
            self._write_log(report)
        except OSError as error:
            self._tell_of_log(error)
            self._close_log()
        if report["done"]:
            tell_user("info", report["summary"] + self._keep(report))
        elif finished:
            tell_user(
                "info", f"{report['summary']}; the job has ended before the end of autotuning, so nothing is kept"
            )
        return bool(report["done"] or finished)

    def _keep(self, report: dict[str, Any]) -> str:
        path = tuning_files.file_for(self._settings, self._world)
        if not report["found"] or path is None:
            return ""
        try:
            tuning_files.write(path, self._world, report["knobs"], report["gain"])
        except OSError as error:
            tell_user("warning", f"the results of autotuning cannot be written to {path}: {error.strerror or error}")
            return ""
        return f"; kept in {path}"

    def _open_log(self) -> TextIO | None:
        path = self._settings.autotune_log
        if path is None:
            return None
        try:
            return open(path, "w", newline="")
        except OSError as error:
            self._tell_of_log(error)
            return None

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(OSError):  # What could not be written was told before.
                log.close()

    def _tell_of_log(self, error: OSError) -> None:
        path = self._settings.autotune_log
        tell_user("warning", f"the log of autotuning cannot be written to {path}: {error.strerror or error}")

    def _write_log(self, report: dict[str, Any]) -> None:
        if self._log is None:
            return
        writer = csv.writer(self._log)
        if not self._headed:
            writer.writerow(["phase", "why", *report["knobs"], "bytes_per_second"])
            self._headed = True
        for sample in report["samples"][self._logged :]:
            score = round(sample["bytes_per_second"])
            writer.writerow([sample["phase"], sample["why"], *sample["knobs"].values(), score])
        self._logged = len(report["samples"])
        if report["done"]:
            writer.writerow(["done", f"{report['gain']:.3f} times the defaults", *report["knobs"].values(), ""])
        self._log.flush()
