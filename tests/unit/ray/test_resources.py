"""Waits for the resources of a job, without Ray."""

from __future__ import annotations

import types

import pytest

from farandole.ray import use_ray as using
from farandole.ray.use_ray import is_ready


class Group:
    """A placement group that becomes ready when it has been waited for long enough; no time passes."""

    def __init__(self, ready_after: float) -> None:
        self.left = ready_after

    def wait(self, seconds: float) -> bool:
        self.left -= seconds
        return self.left <= 0


@pytest.mark.parametrize(
    ("ready_after", "seconds", "came", "announced"),
    [(5, 600, True, False), (300, 600, True, True), (900, 600, False, True), (900, 2, False, False)],
)
def test_long_wait_is_announced(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ready_after: float,
    seconds: float,
    came: bool,
    announced: bool,
) -> None:
    ray = types.SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0}, available_resources=lambda: {"CPU": 1.0})
    monkeypatch.setattr(using, "use_ray", lambda: ray)
    assert is_ready(Group(ready_after), seconds, "2 workers") is came
    said = "farandole: waiting up to 600 s for 2 workers; of {'CPU': 8.0}, {'CPU': 1.0} are free\n"
    assert capsys.readouterr().err == (said if announced else "")
