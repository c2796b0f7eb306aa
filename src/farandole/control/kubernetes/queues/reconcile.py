"""Computes the status of a Queue. Pure. The decisions on its jobs are made in `decide`."""

from __future__ import annotations

from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.model import Observed, Outcome

READY = "Ready"


def reconcile(observed: Observed) -> Outcome:
    """Return the outcome for a Queue."""
    figures = observed.figures
    if figures is None or observed.metadata.get("deletionTimestamp"):
        return Outcome("it is about to be deleted, or was just created")
    status = observed.job.get("status")
    old = status if isinstance(status, dict) else {}
    message = figures.fault or "It shares its workers among its jobs."
    reason = "InvalidSpec" if figures.fault else "Serving"
    known = conditions.with_condition(
        conditions.of_status(old), READY, not figures.fault, reason, message, observed.now
    )
    if figures.fault and not known:
        known = [{"type": READY, "status": "False", "reason": reason, "message": message}]
    new = {
        **old,
        "conditions": known,
        "used": figures.used,
        "running": figures.running,
        "waiting": figures.waiting,
    }
    return Outcome(f"{figures.running} jobs run, {figures.waiting} wait", None if new == old else new)
