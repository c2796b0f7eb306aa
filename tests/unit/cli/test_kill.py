"""Signals as people write them, and ranks that are not there."""

from __future__ import annotations

import pytest

from farandole.control.cli.kill import local_name, read_signal
from farandole.control.launcher.supervise.workers import Workers
from farandole.errors import SpecError


@pytest.mark.parametrize("text", ["SIGKILL", "sigkill", "kill", "9"])
def test_a_signal_is_read_by_name_and_number(text: str) -> None:
    assert read_signal(text) == 9


@pytest.mark.parametrize(("text", "hint"), [("SIGKIL", "did you mean SIGKILL?"), ("0", "such as SIGKILL"), ("999", "")])
def test_an_unknown_signal_is_refused(text: str, hint: str) -> None:
    with pytest.raises(SpecError, match="there is no signal") as error:
        read_signal(text)
    assert error.value.hint.startswith(hint)


def test_a_job_of_the_queue_is_found_by_its_name() -> None:
    running = ["otter", "resnet.12", "resnet.large", "bert-2"]
    assert local_name("resnet", running) == "resnet.12"
    assert local_name("resnet.large", running) == "resnet.large", "its own name comes first"
    assert local_name("bert", running) == "bert", "which is then not found"
    assert local_name(None, running) is None


def test_missing_ranks_are_refused() -> None:
    workers = Workers.__new__(Workers)  # Without its output, which needs a loop.
    workers.by_number = {}
    with pytest.raises(SpecError, match="no rank 0 yet"):
        workers.of_rank(0, ())
    with pytest.raises(SpecError, match="no rank -1"):
        workers.of_rank(-1, (0, 1))
    with pytest.raises(SpecError, match="rank 1 has ended"):
        workers.of_rank(1, (0, 1))
