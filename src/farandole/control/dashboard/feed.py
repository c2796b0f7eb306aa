"""A source's data about one job, shared by all browsers: the source is asked at most once per interval.

Threads: the server's worker threads. A lock lets one of them ask, and the others use its result.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from farandole.base.trace.timeline_path import path_of_generation
from farandole.control.dashboard.sources import MOST_LINES, JobSource
from farandole.control.dashboard.timeline_window import read_end, spans_of, window_model
from farandole.control.dashboard.view_model import cluster_model, job_model, jobs_model, line_model
from farandole.control.jobs.errors import JobError
from farandole.control.jobs.view import JobView, OutputLine

FRESH_SECONDS = 0.8
JOBS_FRESH_SECONDS = 2.0
LOG_FRESH_SECONDS = 10.0
"""Seconds for which a newly opened page reuses the log that was read for another page."""


class JobFeed:
    """The data of one job.

    Lines of output come from the job's launcher, from its log, or from the launcher that has taken the job over, and
    each of these counts from 0. Browsers see the numbers of the feed, which only grow.
    """

    def __init__(self, source: JobSource, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._asked = -FRESH_SECONDS
        self._model: dict[str, Any] = {}
        self._lines: collections.deque[OutputLine] = collections.deque(maxlen=MOST_LINES)
        self._next = 0
        """The feed's number of the next line."""
        self._first = 0
        """The number of the first line shown: the log was read again, and its lines replace all earlier ones."""
        self._launcher_next = 0
        """The launcher's number of its next line."""
        self._log_read_at = -LOG_FRESH_SECONDS
        self._log_is_whole = False

    def model(self, lines_from: int) -> dict[str, Any]:
        """Return the page's data about the job, with the lines from this number on.

        A browser that has seen lines of an earlier server asks for numbers that do not exist yet, and gets all lines.
        """
        with self._lock:
            if self._clock() - self._asked >= FRESH_SECONDS:
                self._ask(is_opened=not lines_from)
                self._asked = self._clock()
            lines_from = 0 if lines_from > self._next else lines_from
            lines = [line_model(line) for line in self._lines if line.number >= lines_from]
            return {**self._model, "lines": lines, "lines_first": self._first, "lines_next": self._next}

    def _ask(self, is_opened: bool) -> None:
        try:
            status, view = self._source.view(self._name, self._launcher_next)
        except JobError as error:
            self._model = {**self._model, "error": f"{error.message}. {error.hint}".strip()}
            return
        if 0 < view.lines_next < self._launcher_next:
            self._launcher_next = 0  # Another launcher has taken the job over; its lines come with the next answer.
        else:
            self._append(line for line in view.lines if line.number >= self._launcher_next)
            self._launcher_next = max(self._launcher_next, view.lines_next)
        if not view.lines_next:
            self._read_log(is_opened, status.state.is_over)
        self._model = {**job_model(status, view, time.time()), "timeline": timeline_model(view), "error": ""}

    def _read_log(self, is_opened: bool, is_over: bool) -> None:
        """Read the log, if it does not come with the view: when a page is opened, and once at the end."""
        is_fresh = self._clock() - self._log_read_at < LOG_FRESH_SECONDS
        if self._log_is_whole or not (is_over or (is_opened and not is_fresh)):
            return
        try:
            lines = self._source.output(self._name)
        except JobError:
            return
        self._log_read_at, self._log_is_whole = self._clock(), is_over
        known, read = [_content(line) for line in self._lines], [_content(line) for line in lines]
        if read[: len(known)] == known:
            lines = lines[len(known) :]
        else:
            self._lines.clear()
            self._first = self._next
        self._append(lines)

    def _append(self, lines: Iterable[OutputLine]) -> None:
        for line in lines:
            self._lines.append(msgspec.structs.replace(line, number=self._next))
            self._next += 1


def _content(line: OutputLine) -> tuple[int | None, bool, str]:
    return line.worker, line.error, line.text


def timeline_model(view: JobView) -> dict[str, Any]:
    """Return the last seconds of the timeline, or the reason why there is none."""
    if not view.timeline:
        return {"note": "Start the job with --timeline FILE to see here what each rank does."}
    path = path_of_generation(view.timeline, view.generation)
    if not path.endswith(".json"):
        return {"note": f"The timeline {path} is not Chrome JSON: open it in ui.perfetto.dev."}
    try:
        window = window_model(spans_of(read_end(path)))
    except OSError as error:
        return {"note": f"The timeline {path} cannot be read here: {error.strerror or error}."}
    return window or {"note": f"The timeline {os.path.basename(path)} is still empty."}


class Overview:
    """The data of all jobs and the cluster, shared by all browsers."""

    def __init__(self, source: JobSource, clock: Callable[[], float] = time.monotonic) -> None:
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
        """Return the feed of a job; None if there is no such job."""
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
