"""Jobs of fixed size on Spark Connect: the client's part. It has no SparkContext, and executors may not reach it."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import secrets
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

from farandole.base.display.standard_output import log_line
from farandole.control.launcher.agents.reception import HostsMissing
from farandole.control.launcher.output.console import text_writer, until_broken
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.errors import JobFailed
from farandole.spark.connect_task import SCHEMA, Answer, Member, Removal
from farandole.spark.driver import Options, streams_of
from farandole.spark.use_spark import why_dialer_ended, why_it_failed

_REST_SECONDS = 0.2
_END_SECONDS = 30.0


def run_by_connect(session: Any, call: bytes, size: int, options: Options) -> JobOutcome:
    """Run a job to its end, and print the last lines of its workers.

    Args:
        session: the session of Spark Connect.
        call: the pickled function and arguments.
        size: the number of workers.
        options: all other options of the user.

    Raises:
        HostsMissing: the tasks have not started in time.
        JobFailed: Spark cannot run tasks for the job.
        SpecError: the job cannot be started.
    """
    job = f"farandole-run-{secrets.token_hex(8)}"
    member = Member(job, call, size, replace(options, stdout=None, stderr=None))
    answer, codes = _Query(session, member).run()
    for stream, text in zip(streams_of(options), (answer.stdout, answer.stderr), strict=True):
        until_broken(text_writer(stream), lambda: None, log_line)(text.encode())
    if isinstance(answer.outcome, Exception):
        raise answer.outcome
    why = next(filter(None, itertools.starmap(why_dialer_ended, codes.items())), "")
    if answer.outcome.exit_code == 0 or not why:
        return answer.outcome
    return replace(answer.outcome, report=f"{answer.outcome.report}\n{why}")


class _Query:
    """The query whose tasks are the job.

    Args:
        session: the session of Spark Connect.
        member: the function of the tasks.
    """

    def __init__(self, session: Any, member: Member) -> None:
        self._session = session
        self._member = member
        self._rows: Future[list[tuple[int, int, bytes]]] = Future()
        self._have_started = threading.Event()

    def run(self) -> tuple[Answer, dict[int, int]]:
        """Run the query; return the answer of task 0, and the exit codes of the dialers in the other tasks.

        Raises:
            HostsMissing: the tasks have not started in time.
            JobFailed: Spark has failed to run them.
        """
        thread = threading.Thread(target=self._collect, name=self._member.job, daemon=True)
        thread.start()
        try:
            self._wait()
        except BaseException as why:
            self._session.interruptTag(self._member.job)
            thread.join(_END_SECONDS)
            # Tasks that had no room have left no files, and others would wait for it now.
            if not isinstance(why, HostsMissing):
                self._remove_files()
            raise
        if (error := self._rows.exception()) is not None:
            self._remove_files()
            raise JobFailed(f"Spark ended the tasks of the workers: {why_it_failed(error)}", None, 1) from error
        pieces: dict[int, list[bytes]] = {}
        for task, _, data in sorted(self._rows.result()):
            pieces.setdefault(task, []).append(data)
        found = {task: pickle.loads(b"".join(each)) for task, each in pieces.items()}
        return found.pop(0), found

    def _collect(self) -> None:
        session, size = self._session, self._member.size
        try:
            # Tags are the thread's.
            session.addTag(self._member.job)
            session.registerProgressHandler(self._progress)
            frame = session.range(0, size, 1, size).mapInArrow(self._member, SCHEMA, barrier=True)
            self._rows.set_result([(row["task"], row["at"], bytes(row["data"])) for row in frame.collect()])
        except BaseException as error:
            self._rows.set_exception(error)
        finally:
            session.removeProgressHandler(self._progress)

    def _remove_files(self) -> None:
        """Remove the files of tasks that Spark has killed, on the machines where it starts tasks now."""
        session, size, tag = self._session, self._member.size, f"{self._member.job}-removal"

        def work() -> None:
            # The job has failed for a reason that must not be hidden by an error here.
            with contextlib.suppress(Exception):
                session.addTag(tag)
                session.range(0, size, 1, size).mapInArrow(Removal(self._member.job), SCHEMA).collect()

        thread = threading.Thread(target=work, name=tag, daemon=True)
        thread.start()
        thread.join(_END_SECONDS)
        if thread.is_alive():
            session.interruptTag(tag)

    def _progress(self, stages: Any, inflight_tasks: int, **_: Any) -> None:
        # Handlers are the session's, and called in the thread of their query.
        if threading.current_thread().name == self._member.job and inflight_tasks >= self._member.size:
            self._have_started.set()

    def _wait(self) -> None:
        patience = self._member.options.start_timeout
        deadline = time.monotonic() + patience
        while not wait([self._rows], _REST_SECONDS).done:
            if time.monotonic() > deadline and not self._have_started.is_set():
                raise HostsMissing(f"the {self._member.size} tasks had not started after {patience:g} s")
