"""Resources, ranks and devices on a Ray cluster, without Ray."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

import pytest

from farandole.control.launcher.plan.environment import place_variables
from farandole.ray import RayExecutor
from farandole.ray.placement import (
    Placement,
    count_slots,
    count_workers,
    devices_by_node,
    find_node_places,
    plan_placement,
)


def test_placement_groups() -> None:
    assert plan_placement(3, None, 1, 2, 0) == Placement("PACK", ({"CPU": 2},) * 3, (1, 1, 1))
    assert plan_placement(None, 2, 4, 1, 1) == Placement("STRICT_SPREAD", ({"CPU": 4, "GPU": 4},) * 2, (4, 4))
    assert plan_placement(1, None, 1, 0, 0).bundles == ({"CPU": 0.001},), "Ray takes no empty bundle"


def test_room_in_bundles() -> None:
    assert count_workers([{"CPU": 1}, {"CPU": 2.5}, {"GPU": 4}], 1, 0) == 3
    assert count_workers([{"CPU": 8, "GPU": 1}, {"CPU": 1, "GPU": 4}], 1, 1) == 2
    assert count_workers([{"CPU": 1}], 0.1, 0) == 10, "1 // 0.1 is 9"
    assert count_workers([{"CPU": 1}], 0, 0) == math.inf


def test_a_host_is_a_node_and_its_ranks_need_not_be_contiguous() -> None:
    places = find_node_places(["n", "m", "n", "n"])
    each = [place_variables(rank, 4, place) for rank, place in enumerate(places)]
    names = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    assert [[one[name] for name in names] for one in each] == [
        ["0", "0", "3", "0", "2"],
        ["1", "0", "1", "1", "2"],
        ["2", "1", "3", "0", "1"],
        ["3", "2", "3", "0", "1"],
    ]
    assert [one["HOROVOD_HOSTNAME"] for one in each] == ["n", "m", "n", "n"]


def test_workers_of_a_node_see_all_devices_of_the_job_there() -> None:
    assert devices_by_node(["n", "m", "n"], [["3"], ["0"], ["1"]]) == ["3,1", "0", "3,1"]


def node(address: str, cpus: float, gpus: float = 0, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


def test_slots_of_nodes() -> None:
    assert count_slots([node("a", 4), node("b", 0), node("c", 4, alive=False)], 1, 1, False) == {"a": 4}
    assert count_slots([node("a", 4, 1)], 1, 1, True) == {"a": 1}
    assert count_slots([node("a", 8, 4)], 1, 2, True) == {"a": 2}
    assert count_slots([node("a", 8)], 1, 1, True) == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_workers": 2}, "`max_workers` needs `min_workers`"),
        ({"max_workers": 2, "min_workers": 0}, "`max_workers` needs `min_workers`"),
        ({"min_workers": 1, "num_workers": 2}, "^Both `min_workers` and `num_workers` provided."),
        ({"num_workers": 1, "gpus_per_worker": 1}, "without `use_gpu=True`"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "must be at least 1"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RayExecutor(RayExecutor.create_settings(), **arguments)


def test_settings(tmp_path: Path) -> None:
    file = tmp_path / "key"
    settings = RayExecutor.create_settings(ssh_identity_file=str(file), ssh_str="a key", verbose=True)
    assert file.read_text() == "a key" and stat.S_IMODE(file.stat().st_mode) == 0o600
    RayExecutor.create_settings(ssh_identity_file=str(file), ssh_str="another")
    assert file.read_text() == "a key"
    assert (settings.timeout_s, settings.placement_group_timeout_s, settings.verbose, settings.elastic) == (
        *(30, 100, True, False),
    )
