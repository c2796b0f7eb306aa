"""The first collective reports what is wrong with a machine's driver or NCCL, unless there is a way around it."""

from __future__ import annotations

import os

import pytest
import torch
from fake_gpu_device import DEVICE

import farandole.torch as hvd
from farandole.errors import FarandoleError


def sum_of_ones():
    """Return the sum of a one of each rank, or why there is none."""
    try:
        return float(hvd.allreduce(torch.ones(3, device=f"{DEVICE}:{hvd.rank()}"), op=hvd.Sum)[2])
    except FarandoleError as error:
        return str(error)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"FAKE_GPU_DRIVER_VERSION": "11020"}, "driver is of CUDA 11.2, which is too old. Install one for CUDA 11.4"),
        ({"FAKE_NCCL_VERSION": "21805", "FARANDOLE_GPU": "nccl"}, "is NCCL 2.18.5, and 2.19 or newer is needed"),
        ({"FARANDOLE_NCCL_LIBRARY": "/none.so", "FARANDOLE_GPU": "nccl"}, "NCCL cannot be loaded (/none.so: cannot"),
        ({"FAKE_GPU_MIG": "1", "FARANDOLE_GPU": "nccl"}, "Duplicate GPU detected : rank 1 and rank 0 both on"),
    ],
    ids=["old driver", "old nccl", "no nccl", "MIG"],
)
def test_every_rank_is_told_what_is_missing(worlds_with, variables, words):
    for told in worlds_with(**variables).run(2, sum_of_ones):
        assert words in str(told)


@pytest.mark.parametrize(
    "variables",
    [{"FAKE_NCCL_VERSION": "21805"}, {"FARANDOLE_NCCL_LIBRARY": "/none.so"}, {"FAKE_GPU_MIG": "1"}],
    ids=["old nccl", "no nccl", "MIG"],
)
def test_without_nccl_tensors_go_through_host_memory(worlds_with, variables):
    worlds = worlds_with(**variables)
    # NCCL is refused beside the first of them.
    for _ in range(10):
        assert worlds.run(2, sum_of_ones) == [2.0, 2.0]


def test_a_child_of_a_process_that_has_used_its_gpu(worlds):
    def body():
        before = sum_of_ones()
        child = os.fork()
        if child == 0:
            told = "nothing"
            try:
                hvd.allreduce(torch.ones(1))
            except FarandoleError as error:
                told = str(error)
            os._exit(7 if "only the worker itself takes part in collectives" in told else 1)
        _, status = os.waitpid(child, 0)
        return before, os.waitstatus_to_exitcode(status), sum_of_ones()

    assert worlds.run(2, body) == [(2.0, 7, 2.0)] * 2
