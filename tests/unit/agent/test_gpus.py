"""The GPUs of a host, and of some of its slots."""

from __future__ import annotations

import pytest

from farandole.control.agent.gpus import of_slots, read_listing, visible_gpus

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 3g.20gb     Device  1: (UUID: MIG-GPU-5c89852c/1/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-00000000-0000-0000-0000-000000000001)
"""


def test_instances_of_a_gpu_stand_in_its_place() -> None:
    assert read_listing(LISTING) == ["MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-GPU-5c89852c/1/0", "1"]
    assert read_listing("no devices were found") == []


def test_what_is_visible_are_those_up_to_the_first_that_is_none() -> None:
    assert visible_gpus({}, lambda: ["0", "1"]) == ["0", "1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-a,-1,2"}) == ["3", "GPU-a"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []


@pytest.mark.parametrize(
    ("numbers", "count", "chosen"),
    [
        ("0/1", 0, []),
        ("0,2/4", 4, ["0", "2"]),
        ("2,0/4", 4, ["2", "0"]),
        ("1/2", 8, ["4", "5", "6", "7"]),
        ("1/3", 4, ["1"]),
        ("5,6/8", 4, ["1", "2"]),
        ("0,4/8", 4, ["0"]),
    ],
)
def test_slots_share_gpus_or_have_several(numbers: str, count: int, chosen: list[str]) -> None:
    assert of_slots(numbers, list(map(str, range(count)))) == chosen
