"""What a source says of one job, asked for all browsers together: at most once in a while, however many look.

Threads: those in which the server waits for sources. A lock lets one of them ask, and the others take what it got.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from farandole.dashboard.sources import MOST_LINES, Source
from farandole.dashboard.timeline_window import read_end, spans_of, window_model
from farandole.dashboard.view_model import cluster_model, job_model, jobs_model, line_model
from farandole.jobs.errors import JobError
from farandole.jobs.view import JobView, OutputLine
from farandole.observe.timeline_path import path_of_generation

FRESH_SECONDS = 0.8
JOBS_FRESH_SECONDS = 2.0
LOG_FRESH_SECONDS = 10.0
"""A page that is opened sooner after another one has the log that was read for that one."""


class JobFeed:
    """One job."""

    def __init__(self, source: Source, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._asked = -FRESH_SECONDS
        self._model: dict[str, Any] = {}
        self._lines: collections.deque[OutputLine] = collections.deque(maxlen=MOST_LINES)
        self._lines_next = 0
        self._log_read_at = -LOG_FRESH_SECONDS
        self._log_is_whole = False

    def model(self, lines_from: int) -> dict[str, Any]:
        """Return what is shown of the job, with the lines from this number on."""
        with self._lock:
            if self._clock() - self._asked >= FRESH_SECONDS:
                self._ask(is_opened=not lines_from)
                self._asked = self._clock()
            lines = [line_model(line) for line in self._lines if line.number >= lines_from]
            return {**self._model, "lines": lines, "lines_next": self._lines_next}

    def _ask(self, is_opened: bool) -> None:
        try:
            status, view = self._source.view(self._name, self._lines_next)
        except JobError as error:
            self._model = {**self._model, "error": f"{error.message}. {error.hint}".strip()}
            return
        if 0 < view.lines_next < self._lines_next:  # Another launcher has taken the job over: it counts from 0.
            self._lines_next = 0
            self._lines.clear()
        self._lines.extend(line for line in view.lines if line.number >= self._lines_next)
        self._lines_next = max(self._lines_next, view.lines_next)
        if not view.lines_next:
            self._read_log(is_opened, status.state.is_over)
        self._model = {**job_model(status, view, time.time()), "timeline": timeline_model(view), "error": ""}

    def _read_log(self, is_opened: bool, is_over: bool) -> None:
        """Read the log, where it does not come with the view: when a page is opened, and once at the end."""
        is_fresh = self._clock() - self._log_read_at < LOG_FRESH_SECONDS
        if self._log_is_whole or not (is_over or (is_opened and not is_fresh)):
            return
        try:
            lines = self._source.output(self._name)
        except JobError:
            return
        self._log_read_at, self._log_is_whole = self._clock(), is_over
        self._lines.clear()
        self._lines.extend(lines)
        self._lines_next = lines[-1].number + 1 if lines else 0


def timeline_model(view: JobView) -> dict[str, Any]:
    """Return the last seconds of the timeline, or why there is none."""
    if not view.timeline:
        return {"note": "Start the job with --timeline FILE to see here what each rank does."}
    path = path_of_generation(view.timeline, view.generation)
    if not path.endswith(".json"):
        return {"note": f"The timeline {path} is no Chrome JSON: open it in ui.perfetto.dev."}
    try:
        window = window_model(spans_of(read_end(path)))
    except OSError as error:
        return {"note": f"The timeline {path} cannot be read here: {error.strerror or error}."}
    return window or {"note": f"Nothing is in the timeline {os.path.basename(path)} yet."}


class Overview:
    """All jobs, and the cluster, for all browsers together."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._asked = -JOBS_FRESH_SECONDS
        self._model: dict[str, Any] = {}
        self._feeds: dict[str, JobFeed] = {}

    def model(self) -> dict[str, Any]:
        """Return the list of jobs and the cluster."""
        with self._lock:
            if self._clock() - self._asked >= JOBS_FRESH_SECONDS:
                self._ask()
                self._asked = self._clock()
            return self._model

    def feed(self, name: str) -> JobFeed | None:
        """Return the feed of a job; None when there is no such job."""
        known = {job["name"] for job in self.model().get("jobs", ())}
        with self._lock:
            if name not in known and name not in self._feeds:
                return None
            return self._feeds.setdefault(name, JobFeed(self._source, name))

    def _ask(self) -> None:
        try:
            jobs = jobs_model(self._source.jobs(), time.time())
            self._model = {"jobs": jobs, "cluster": cluster_model(self._source.cluster()), "error": ""}
        except JobError as error:
            self._model = {"jobs": [], "cluster": None, "error": f"{error.message}. {error.hint}".strip()}
