"""The facts about the launcher's machine and process."""

from __future__ import annotations

import pytest

from farandole.control.launcher.job.machine import look


def test_job_that_an_elastic_worker_starts_does_not_inherit_that_it_is_elastic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its workers would ask for the next world of an elastic job, and all take themselves for one worker."""
    for name in ("FARANDOLE_ELASTIC", "HOROVOD_ELASTIC", "FARANDOLE_WORKER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("FARANDOLE_FUSION_THRESHOLD", "1024")
    environment = look().environment
    assert not {"FARANDOLE_ELASTIC", "HOROVOD_ELASTIC", "FARANDOLE_WORKER"} & environment.keys()
    assert environment["FARANDOLE_FUSION_THRESHOLD"] == "1024"
