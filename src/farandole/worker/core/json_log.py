"""Lines of a log as JSON objects, for programs that collect logs."""

from __future__ import annotations

import json
import logging
import time


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: time (UTC), level, logger, rank, message; with an exception, its traceback.

    Example:
        >>> record = logging.LogRecord("farandole", logging.WARNING, "", 0, "rank %d is slow", (3,), None)
        >>> record.created, record.msecs, record.rank = 0.0, 0.0, 0
        >>> JsonFormatter().format(record)
        '{"time": "1970-01-01T00:00:00.000Z", "level": "warning", "logger": "farandole", "rank": 0, \
"message": "rank 3 is slow"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if (rank := getattr(record, "rank", None)) is not None:
            line["rank"] = rank
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
