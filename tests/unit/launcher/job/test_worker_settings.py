"""Values for settings of workers: refusals, and the workers' environment."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.base.settings.table import FLAGS, SETTINGS, Settings
from farandole.control.launcher.job.worker_settings import check_settings, settings_environment
from farandole.errors import SpecError

ASKED: dict[str, Any] = {
    "fusion_threshold": 0,
    "autotune": True,
    "tuning": "../tuned.json",
    "timeline": "/tmp/timeline.json",
    "stall_shutdown_seconds": 0.1 + 0.2,
    "log_level": "off",
}


def test_workers_read_requested_values() -> None:
    check_settings(ASKED)
    variables = settings_environment(ASKED, "/home/me")
    assert Settings.from_environment(variables) == Settings(
        fusion_threshold=0,
        autotune=True,
        tuning="/home/me/../tuned.json",
        timeline="/tmp/timeline.json",
        stall_shutdown_seconds=0.1 + 0.2,
        log_level=5,
    )
    assert len(variables) == len(ASKED), "all else is left to the environment"


@pytest.mark.parametrize(
    ("asked", "why", "hint"),
    [
        ({"transport": "pigeon"}, "--transport is pigeon, but should be one of auto, shm, tcp", "see --transport"),
        ({"stall_warning_seconds": -1.0}, "--stall-warning is -1, but should be a number of seconds", "see --stall-w"),
        ({"fusion_threshold": -(1 << 20)}, "--fusion-threshold-mb is -1, but should be a number of MB", "see --fusion"),
        (
            {"start_timeout": 1e12},
            "--start-timeout is 1e+12, but should be a number of seconds above 0, at",
            "see --st",
        ),
        ({"autotune_log": "x.csv"}, "--autotune-log-file logs nothing without autotuning", "add --autotune"),
        ({"timeline_mark_cycles": True}, "--timeline-mark-cycles marks nothing", "add --timeline FILE"),
    ],
)
def test_invalid_values_are_refused(asked: dict[str, Any], why: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_settings(asked)
    assert why in caught.value.message and caught.value.hint.startswith(hint)


def test_required_settings_have_flags() -> None:
    needed = {row.flag.needs for row in FLAGS.values() if row.flag is not None} - {""}
    assert needed and all(SETTINGS[name].flag is not None for name in needed)
