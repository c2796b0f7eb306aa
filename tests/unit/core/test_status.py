"""Native statuses become exceptions."""

from __future__ import annotations

import pytest

from farandole.errors import (
    FarandoleError,
    HorovodInternalError,
    InvalidRequestError,
    MismatchError,
    ShutDownError,
    StartError,
    WorkerLostError,
)
from farandole.worker.core.status import Status, from_status


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_ARGUMENT, InvalidRequestError),
        (Status.MISMATCH, MismatchError),
        (Status.WORKER_LOST, WorkerLostError),
        (Status.SHUT_DOWN, ShutDownError),
        (Status.TIMEOUT, StartError),
        (Status.UNAVAILABLE, StartError),
        (Status.INTERNAL, HorovodInternalError),
    ],
)
def test_statuses(status, kind):
    error = from_status(status, "what happened", 3)
    assert type(error) is kind and str(error) == "what happened"


def test_every_status_but_ok_is_mapped():
    for status in Status:
        if status != Status.OK:
            assert isinstance(from_status(status, "", -1), FarandoleError)


@pytest.mark.parametrize("status", [Status.WORKER_LOST, Status.SHUT_DOWN, Status.TIMEOUT])
def test_the_lost_rank(status):
    assert from_status(status, "", 3).rank == 3
    assert from_status(status, "", -1).rank is None
