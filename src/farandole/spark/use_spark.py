"""The connection of this process to Spark: a SparkContext, or a session of Spark Connect.

PySpark is imported when it is needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import subprocess
from typing import Any

from farandole.errors import SpecError

_JAVA_SECONDS = 2.0


def active_context() -> Any:
    """Return the active SparkContext.

    Raises:
        SpecError: PySpark is not installed, or there is no SparkContext, as on Spark Connect.
    """
    _check_installed()
    from pyspark import SparkContext

    if connect_session() is not None:
        raise SpecError(
            "a session of Spark Connect has no SparkContext, which elastic jobs and saved stages need",
            "connect without remote(), as a program of spark-submit does. farandole.spark.run with num_proc= works on "
            "Spark Connect, as do fit and transform of estimators",
        )
    context = SparkContext._active_spark_context
    if context is None:
        raise SpecError(
            "Could not find an active SparkContext, which a PySpark program has",
            "create one first: SparkSession.builder.getOrCreate()",
        )
    return context


def connect_session() -> Any:
    """Return the active session of Spark Connect; None if this process uses Spark otherwise.

    Raises:
        SpecError: PySpark is not installed.
    """
    _check_installed()
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    return SparkSession.getActiveSession() if is_remote() else None


def _check_installed() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise SpecError("PySpark is not installed", "pip install 'farandole[spark]'")


def adds_executors(context: Any) -> bool:
    """Return whether Spark adds and removes executors by demand."""
    return bool(context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true")


def what_ended_spark(context: Any) -> str:
    """Return why Spark itself has ended; "": it can run jobs."""
    java = getattr(context._gateway, "proc", None)
    try:
        stopped = context._jsc is None or context._jsc.sc().isStopped()
    except Exception:
        # The connection breaks a moment before the process can be waited for. If spark-submit has started both, it is
        # not a child of this one.
        code = None
        if java is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = java.wait(_JAVA_SECONDS)
        return f"the Java process of Spark's driver {'does not answer' if code is None else how_it_exited(code)}"
    return "the SparkContext was stopped" if stopped else ""


def how_it_exited(code: int) -> str:
    """Return how a process has ended, by its exit code or minus its signal.

    Example:
        >>> how_it_exited(-9)
        'was killed by SIGKILL'
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def why_dialer_ended(task: int, code: int) -> str:
    """Return the explanation of the exit code of a task's dialer; "": it succeeded."""
    if code == 0:
        return ""
    return (
        f"the process that connects task {task} of Spark to the launcher {how_it_exited(code)}; its own lines are in "
        "the output of the executor"
    )


def cancel(context: Any, group: str) -> None:
    """Cancel the Spark jobs of a group; no-op if Spark has ended."""
    # The caller ends a job of ours, for a reason that must not be hidden by an error of Spark's.
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)


def why_it_failed(error: BaseException) -> str:
    """Return the line with the cause in Spark's message about a failed job.

    Example:
        >>> why_it_failed(RuntimeError("An error occurred.\\n: org.apache.spark.SparkException: Job aborted: lost"))
        'Job aborted: lost'
    """
    text = str(error)
    # Of an exception in Python, the line after its traceback; of a lost executor, the reason; of a barrier stage, which
    # begins with the stage's own end, that of the task; otherwise, that of the job.
    for pattern in (
        r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)",
        r"(ExecutorLostFailure .*)",
        r"finished unsuccessfully\.\n(?:[\w.]+: )?(.*)",
        r"(?:SparkException|SparkUnsupportedOperationException): (.*)",
    ):
        if found := re.search(pattern, text):
            return found[1].strip()
    return text.strip().partition("\n")[0]
