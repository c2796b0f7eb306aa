"""The launcher's reports in its state object: the progress of the training, and its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farandole.control.kubernetes.model import Object, Observed
from farandole.control.kubernetes.training_job import own_names


def outcome(observed: Observed, attempt: int) -> tuple[int, str] | None:
    """Return the exit code and the report of an attempt; None while it has none."""
    found = _read(observed, own_names.OUTCOME_KEY)
    code = found.get("exitCode")
    if found.get("attempt") != attempt or not isinstance(code, int) or isinstance(code, bool):
        return None
    return code, str(found.get("report", ""))


def progress(observed: Observed, attempt: int) -> Object | None:
    """Return the state of the training, as the launcher has reported it."""
    found = _read(observed, own_names.STATUS_KEY)
    if found.get("attempt") != attempt:
        return None
    return {key: value for key, value in found.items() if key != "attempt"}


def pods_with_workers(observed: Observed, attempt: int) -> frozenset[str]:
    """Return the names of the worker pods in which the launcher has started workers, according to its report."""
    ranks = (progress(observed, attempt) or {}).get("ranks")
    found = ranks if isinstance(ranks, list) else []
    return frozenset(str(each.get("pod")) for each in found if isinstance(each, Mapping))


def _read(observed: Observed, key: str) -> Mapping[str, Any]:
    name = own_names.state(observed.job)
    state = next((each for ref, each in observed.children.items() if (ref.kind, ref.name) == ("ConfigMap", name)), {})
    data = state.get("data")
    return parsed(data.get(key) if isinstance(data, Mapping) else None)


def parsed(text: object) -> Mapping[str, Any]:
    """Return the data of a report; empty if it is not readable.

    The launcher writes reports, but so can every user with the right to write ConfigMaps in the namespace.
    """
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
