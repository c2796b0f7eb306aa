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
    """Return the first line of Spark's reason for a failed job.

    Example:
        >>> why_it_failed(RuntimeError("An error occurred.\\n: org.apache.spark.SparkException: Job aborted: lost"))
        'Job aborted: lost'
    """
    text = str(error)
    found = re.search(r"(?:SparkException|SparkUnsupportedOperationException): (.*)", text)
    return found[1].strip() if found else text.strip().partition("\n")[0]
