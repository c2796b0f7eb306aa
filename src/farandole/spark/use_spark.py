"""The SparkContext of this process. PySpark is imported when it is needed."""

from __future__ import annotations

import re
from typing import Any

from farandole.errors import SpecError


def active_context() -> Any:
    """Return the active SparkContext.

    Raises:
        SpecError: PySpark is not installed, or there is no SparkContext.
    """
    try:
        from pyspark import SparkContext
    except ImportError as error:
        raise SpecError("PySpark is not installed", "pip install 'farandole[spark]'") from error
    context = SparkContext._active_spark_context
    if context is None:
        raise SpecError(
            "Could not find an active SparkContext, which a PySpark program has",
            "create one first: SparkSession.builder.getOrCreate(). Sessions of Spark Connect have none, and cannot run "
            "farandole's jobs yet",
        )
    return context


def adds_executors(context: Any) -> bool:
    """Return whether executors come and go with the demand."""
    return bool(context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true")


def why_it_failed(error: BaseException) -> str:
    """Return the line of Spark's reason for a failed job that has the cause.

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
